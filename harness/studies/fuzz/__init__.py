"""Campaigns: a search for a problem that breaks a variant, in a worker process, and what is found, shrunk.

campaign.py     chooses, steers, shrinks, adds up; the parent
covering.py     which values go together, so that every two meet
isolation.py    the worker's process as the parent sees it: asked, timed, replaced when it dies
worker.py       the worker's side
examination.py  one case: run, held against the oracle and one property
finding.py      what is wrong with a case, in numbers
pattern.py      where the wrong elements lie and what they have in common
result.py       what a campaign came to
report.py       results as text and as JSON
"""
