"""What each key used: counted on the machine, compared with its limits, and reported."""
