"""Results for print: LaTeX, CSV and vector figures of exhibits and sweeps, and a page of a whole sweep."""
