"""Which release, commit, image or package broke it: plan, run and judge in a loop.

`search` and `attribution` are pure and know no package; `axes` makes histories of what may be probed, `probing` asks
one point of them, `inquiry` brings the two together, `command` is the command line.
"""
