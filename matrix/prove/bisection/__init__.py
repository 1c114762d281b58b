"""Find the release, commit, image or package that introduced a failure: plan, run and judge in a loop.

`search`, `noise` and `odds` are pure. `axes` builds the histories, `probing` runs or reads one point, `probe_session`
stores the results and connects them to the search, `commits` and `joint` run several searches for one question,
`result_summary` summarizes. `turns` and `stack_comparison` compare two stacks by their tests.
"""
