"""Apply and observe a folder of `render kubernetes` in a cluster, with kubectl."""
