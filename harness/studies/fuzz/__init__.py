"""Campaigns: Hypothesis searches for a problem that breaks a variant, in a worker process, and shrinks what it finds.

covering.py     which values go together, so that every two meet
campaign.py     draws, steers, shrinks, adds up; the parent
isolation.py    the worker's process as the parent sees it: asked, timed, replaced when it dies
worker.py       the worker's side
examination.py  one case: run, held against the oracle and one property
finding.py      what is wrong with a case, in numbers
pattern.py      where the wrong elements lie and what they have in common
report.py       results as text and as JSON
"""
