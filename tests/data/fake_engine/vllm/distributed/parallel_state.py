from types import SimpleNamespace

RANK = {"rank": 0}


def get_tp_group():
    return SimpleNamespace(rank_in_group=RANK["rank"])


def get_pp_group():
    return SimpleNamespace(rank_in_group=0)
