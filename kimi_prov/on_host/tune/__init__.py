"""Tries other command lines of the engine on this machine, and brings back what serves."""
