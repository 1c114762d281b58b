"""What the code of failures shares: reproductions inside the ranks of a cell, preflights and charts outside."""
