"""Find the release, commit, image or package that introduced a failure: plan, run and judge in a loop.

`search` and `attribution` are pure. `axes` and `clone` build the histories, `probing` runs or reads one point,
`session` stores the results and connects them to the search, `commits` and `joint` run several searches for one
question, `report` summarizes.
"""
