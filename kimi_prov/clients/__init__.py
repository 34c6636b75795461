"""What a client of a served model needs: the document of a server, and snippets for clients."""
