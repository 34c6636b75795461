"""The code behind each command of the command line."""
