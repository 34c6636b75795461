"""A folder that `render kubernetes` made, and the cluster it is applied to, by kubectl."""
