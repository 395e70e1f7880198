"""Windows over event time: panes, the sliding combination of them, and the operators that emit results.

A pane is the longest stretch of time that no window cuts. Rows are kept in panes only, so what a row costs does not
grow with the number of windows that it is in.
"""
