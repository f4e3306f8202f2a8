"""How methods look in pictures: short names, since there is little room, and one colour each."""

NAMES = {
    "map": "MAP",
    "bll": "BLL",
    "rich_bll": "Rich-BLL",
    "rich_bll_s": "Rich-BLL (S)",
    "ntk_gp": "NTK-GP",
}
COLORS = {
    "map": "#6b6b6b",
    "bll": "#c9820f",
    "rich_bll": "#2a6fbb",
    "rich_bll_s": "#3c9d92",
    "ntk_gp": "#b5442e",
}
