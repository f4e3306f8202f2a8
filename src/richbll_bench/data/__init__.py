"""How a data set is declared, found, fetched, checked and read. The data sets themselves are in `datasets/`."""
