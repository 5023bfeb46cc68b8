"""Campaigns: search for a problem on which a variant fails, in a worker process, and minimize it.

campaign.py     the parent process: chooses cases, steers the search, shrinks failures, counts
covering.py     combines the values of axes, so that few examples cover many pairs
isolation.py    the parent's side of the worker process: time limits, and replacement when it dies
worker.py       the worker's side
examination.py  runs one case and checks it against the oracle and one property
finding.py      what is wrong with a case
pattern.py      the positions of the wrong elements and what they have in common
result.py       the result of a campaign
report.py       results as text and as JSON
"""
