"""What reproductions share; it runs inside the ranks of a cell."""
