"""The soak test: kills, full disks and faults of files at very many moments, each followed by a resumption.

By hand, everything, or some parts of it with other numbers:

    make soak
    PYTHONPATH=tests python -m soak kills faults --kills 20 --faults 50

Linux, a C compiler and `unshare` are needed.
"""
