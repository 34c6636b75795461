"""Documents as text for a terminal, one writer a document."""
