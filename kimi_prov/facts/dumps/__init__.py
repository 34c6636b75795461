"""Output of commands as people keep it: recognised by its content, and put into one form."""
