"""What a report reads: run folders, evaluations, sweeps and reproduced rows, found by searching folders."""
