"""`python -m kimi_prov`: the command line."""

from kimi_prov.cli import main

main()
