"""Reproduces tables and figures of Devlin et al. 2018: GLUE, Table 7, ablations, pictures."""
