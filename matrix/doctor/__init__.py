"""`megatrix doctor`: what this machine has, and what a job would meet on it, before the job is started.

facts      what is known of a machine              -> HostFacts, and its capabilities as answers
probe      asks this machine (cuda, interview)     -> HostFacts
examine    HostFacts and what a person wishes      -> Diagnosis; pure
remedy     which changes would make a job start; pure
command    `megatrix doctor`
"""
