"""ansible-runner behind one door."""
