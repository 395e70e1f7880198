"""Joins of two inputs. Port 0 is the left one, port 1 the right one.

Rows wait in `RowBuffer`s, sorted by key slot and time in a few segments that are merged as they grow, so that a batch
is matched at once and a hot key costs no more than its rows. Results go out in chunks, whatever the number of pairs. A
null key matches nothing, as in SQL.
"""
