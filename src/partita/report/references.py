"""The papers to cite for each method, as BibTeX."""

from collections.abc import Collection

_PAPERS = {
    "pillutla2022": (
        "Federated Learning with Partial Model Personalization",
        "Krishna Pillutla and Kshitiz Malik and Abdelrahman Mohamed and Michael Rabbat and "
        "Maziar Sanjabi and Lin Xiao",
        "International Conference on Machine Learning",
        2022,
        "2204.03809",
    ),
    "mcmahan2017": (
        "Communication-Efficient Learning of Deep Networks from Decentralized Data",
        'Brendan McMahan and Eider Moore and Daniel Ramage and Seth Hampson and Blaise {Ag{\\"u}era y Arcas}',
        "International Conference on Artificial Intelligence and Statistics",
        2017,
        "1602.05629",
    ),
    "reddi2021": (
        "Adaptive Federated Optimization",
        "Sashank Reddi and Zachary Charles and Manzil Zaheer and Zachary Garrett and Keith Rush and "
        "Jakub Kone{\\v{c}}n{\\'y} and Sanjiv Kumar and H. Brendan McMahan",
        "International Conference on Learning Representations",
        2021,
        "2003.00295",
    ),
    "li2020": (
        "Federated Optimization in Heterogeneous Networks",
        "Tian Li and Anit Kumar Sahu and Manzil Zaheer and Maziar Sanjabi and Ameet Talwalkar and "
        "Virginia Smith",
        "Conference on Machine Learning and Systems",
        2020,
        "1812.06127",
    ),
    "karimireddy2020": (
        "{SCAFFOLD}: Stochastic Controlled Averaging for Federated Learning",
        "Sai Praneeth Karimireddy and Satyen Kale and Mehryar Mohri and Sashank Reddi and "
        "Sebastian Stich and Ananda Theertha Suresh",
        "International Conference on Machine Learning",
        2020,
        "1910.06378",
    ),
    "li2021ditto": (
        "Ditto: Fair and Robust Federated Learning Through Personalization",
        "Tian Li and Shengyuan Hu and Ahmad Beirami and Virginia Smith",
        "International Conference on Machine Learning",
        2021,
        "2012.04221",
    ),
    "dinh2020": (
        "Personalized Federated Learning with {Moreau} Envelopes",
        "Canh T. Dinh and Nguyen Tran and Tuan Dung Nguyen",
        "Advances in Neural Information Processing Systems",
        2020,
        "2006.08848",
    ),
    "arivazhagan2019": (
        "Federated Learning with Personalization Layers",
        "Manoj Ghuhan Arivazhagan and Vinay Aggarwal and Aaditya Kumar Singh and Sunav Choudhary",
        "",
        2019,
        "1912.00818",
    ),
    "collins2021": (
        "Exploiting Shared Representations for Personalized Federated Learning",
        "Liam Collins and Hamed Hassani and Aryan Mokhtari and Sanjay Shakkottai",
        "International Conference on Machine Learning",
        2021,
        "2102.07078",
    ),
    "liang2020": (
        "Think Locally, Act Globally: Federated Learning with Local and Global Representations",
        "Paul Pu Liang and Terrance Liu and Liu Ziyin and Nicholas B. Allen and Randy P. Auerbach and "
        "David Brent and Ruslan Salakhutdinov and Louis-Philippe Morency",
        "",
        2020,
        "2001.01523",
    ),
    "li2021fedbn": (
        "{FedBN}: Federated Learning on Non-{IID} Features via Local Batch Normalization",
        "Xiaoxiao Li and Meirui Jiang and Xiaofei Zhang and Michael Kamp and Qi Dou",
        "International Conference on Learning Representations",
        2021,
        "2102.07623",
    ),
    "oh2022": (
        "{FedBABU}: Toward Enhanced Representation for Federated Image Classification",
        "Jaehoon Oh and SangMook Kim and Se-Young Yun",
        "International Conference on Learning Representations",
        2022,
        "2106.06042",
    ),
}


def references(keys: Collection[str]) -> str:
    """Return the BibTeX entries of the papers with these keys."""
    return "\n".join(_entry(key, *paper) for key, paper in _PAPERS.items() if key in keys)


def _entry(key: str, title: str, authors: str, venue: str, year: int, arxiv: str) -> str:
    lines = [
        f"@{'inproceedings' if venue else 'misc'}{{{key},",
        f"  title = {{{title}}},",
        f"  author = {{{authors}}},",
        *([f"  booktitle = {{{venue}}},"] if venue else []),
        f"  year = {{{year}}},",
        f"  eprint = {{{arxiv}}},",
        "  archiveprefix = {arXiv},",
        "}",
    ]
    return "\n".join(lines) + "\n"
