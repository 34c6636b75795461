"""A machine of a cloud that brings itself up, and gives itself back."""
