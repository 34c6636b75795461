"""What a tune of a machine tries, in which order, and which candidate wins."""
