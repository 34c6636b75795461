"""What lscpu and free print in other languages, as lists of words seen in public reports."""

from __future__ import annotations

import re

# The first line of lscpu, and the heads of free.
LSCPU_HEADS = "Architektur|Arquitectura|Arquitetura|Architettura|\u67b6\u6784|\u67b6\u69cb"
FREE_HEADS = (
    r"(?:gesamt|ges|total)[ \t]+(?:benutzt|belegt|utilis\u00e9|usado|usados|usada)[ \t]"
    r"|\u603b\u8ba1[ \t]+\u5df2\u7528|total[ \t]+usado"
)
_ROWS_OF_FREE = {
    "Mem": ("Speicher", "\u5185\u5b58", "Mem.", "Mem\u00f3ria", "Memoria"),
    "Swap": ("\u4ea4\u6362", "Swap.", "Partition d'\u00e9change", "Inter", "Intercambio"),
}
_FIELDS = {
    "Architecture": ("Architektur", "Arquitectura", "\u67b6\u6784"),
    "CPU(s)": ("CPU", "Processeur(s)"),
    "On-line CPU(s) list": (
        "Liste der Online-CPU(s)",
        "Liste de processeur(s) en ligne",
        "\u5728\u7ebf CPU \u5217\u8868",
    ),
    "Thread(s) per core": (
        "Thread(s) pro Kern",
        "Thread(s) par c\u0153ur",
        "\u6bcf\u4e2a\u6838\u7684\u7ebf\u7a0b\u6570",
    ),
    "Core(s) per socket": (
        "Kern(e) pro Socket",
        "Kern(e) pro Sockel",
        "C\u0153ur(s) par socket",
        "\u6bcf\u4e2a\u5ea7\u7684\u6838\u6570",
    ),
    "Socket(s)": ("Sockel", "Socket", "\u5ea7"),
    "Vendor ID": ("Anbieterkennung", "Identifiant constructeur", "\u5382\u5546 ID"),
    "CPU family": ("Prozessorfamilie", "Famille de processeur", "CPU \u7cfb\u5217"),
    "Model": ("Modell", "Mod\u00e8le", "\u578b\u53f7"),
    "Model name": ("Modellname", "Nom de mod\u00e8le", "\u578b\u53f7\u540d\u79f0"),
    "Stepping": ("R\u00e9vision", "\u6b65\u8fdb"),
    "Flags": ("Markierungen", "Drapeaux", "Drapaux", "\u6807\u8bb0"),
    "Hypervisor vendor": (
        "Hypervisor-Anbieter",
        "Constructeur d'hyperviseur",
        "\u8d85\u7ba1\u7406\u5668\u5382\u5546",
    ),
    "NUMA node(s)": ("NUMA-Knoten", "N\u0153ud(s) NUMA", "NUMA \u8282\u70b9"),
}
_BY_WORD = {word: name for name, words in _FIELDS.items() for word in words}
_NODE = re.compile(
    r"(?:NUMA-Knoten|NUMA \u8282\u70b9|N\u0153ud NUMA )(\d{1,3}) "
    r"(?:CPU(?:\(s\))?|de processeur\(s\))"
)


def name_field(word: str) -> str:
    """Return the English name of a field of lscpu."""
    node = _NODE.fullmatch(word)
    return f"NUMA node{node[1]} CPU(s)" if node else _BY_WORD.get(word, word)


def rename_rows(text: str) -> str:
    """Return the output of free with the English names of its rows and points for decimals."""
    for name, words in _ROWS_OF_FREE.items():
        pattern = "|".join(map(re.escape, words))
        text = re.sub(rf"^[ \t]*(?:{pattern})[ \t]?[:\uff1a]", f"{name}:", text, flags=re.MULTILINE)
    return re.sub(r"(?<=\d),(?=\d{1,2}[KMGT])", ".", text)
