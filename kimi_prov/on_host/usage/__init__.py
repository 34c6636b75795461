"""What each key used: counted on the machine, held against its limits, and told."""
