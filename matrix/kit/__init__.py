"""Library for the code of failures: for reproductions inside the ranks of a cell, for preflights and charts outside."""
