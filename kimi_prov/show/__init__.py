"""The output of commands: text for a terminal, live screens, reports."""
