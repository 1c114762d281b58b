"""The search for layouts whose numbers are not those of one rank: points, comparison by cells, causes."""
