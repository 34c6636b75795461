"""A machine of a cloud that sets itself up, and deletes itself at its end."""
