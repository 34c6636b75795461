"""What control machine and managed machine share: paths, units, errors, types of documents."""
