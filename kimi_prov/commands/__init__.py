"""The code behind each command of the command line.

Decides: commands and options (a file for each command).
"""
