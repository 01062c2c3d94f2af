"""The Debian packages the corpus is made of: where their text lies, and its licence.

Left out on purpose: translations, indices and generated tables, change logs (lists rather than prose), and
packages whose licence is unclear for the text itself.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Source:
    """Where a package keeps its text, and under which licence.

    `pattern` is a glob below `root`. A file is left out if its path below `root` matches the regular
    expression `exclude`.
    """

    package: str
    licence: str
    root: str
    pattern: str
    kind: Literal["html", "pod", "text", "dictionary"]
    exclude: str = r"(?!)"


SOURCES = (
    Source(
        "debian-handbook",
        "GPL-2.0-or-later or CC-BY-SA-3.0",
        "usr/share/doc/debian-handbook/html/en-US",
        "*.html",
        "html",
    ),
    Source("debian-reference-en", "GPL-2.0-or-later", "usr/share/debian-reference", "*.en.html", "html"),
    Source(
        "developers-reference",
        "GPL-2.0-or-later",
        "usr/share/developers-reference",
        "*.html",
        "html",
        r"genindex|search",
    ),
    Source(
        "debian-policy",
        "GPL-2.0-or-later",
        "usr/share/doc/debian-policy",
        "**/*.html",
        "html",
        r"fhs|genindex|search|-1\.html|^policy-1|upgrading-checklist-1",
    ),
    Source("debian-faq", "GPL-2.0-or-later", "usr/share/doc/debian/FAQ", "*.en.html", "html"),
    Source(
        "installation-guide-amd64",
        "GPL-2.0-only",
        "usr/share/doc/installation-guide-amd64/en",
        "*.html",
        "html",
        r"gpl|apea",
    ),
    Source(
        "doc-debian",
        "GPL-2.0-or-later",
        "usr/share/doc/debian",
        "*.txt*",
        "text",
        r"FAQ|constitution\.1|social-contract\.1",
    ),
    Source("dict-jargon", "public domain", "usr/share/dictd", "jargon.dict.dz", "dictionary"),
    Source("git-doc", "GPL-2.0-only", "usr/share/doc/git/html", "**/*.html", "html"),
    Source(
        "python3.11-doc",
        "PSF-2.0",
        "usr/share/doc/python3.11/html",
        "**/*.html",
        "html",
        r"genindex|py-modindex|search|whatsnew/changelog",
    ),
    Source(
        "perl-doc",
        "GPL-1.0-or-later or Artistic-1.0-Perl",
        "usr/share/perl",
        "**/*.pod",
        "pod",
        r"delta\.pod|perltoc|perluniprops",
    ),
    Source(
        "postgresql-doc-15",
        "PostgreSQL",
        "usr/share/doc/postgresql-doc-15/html",
        "*.html",
        "html",
        r"bookindex|keywords-appendix|biblio",
    ),
    Source(
        "apache2-doc",
        "Apache-2.0",
        "usr/share/doc/apache2-doc/manual/en",
        "**/*.html",
        "html",
        r"quickreference|license",
    ),
    Source(
        "python-django-doc",
        "BSD-3-Clause",
        "usr/share/doc/python-django-doc/html",
        "**/*.html",
        "html",
        r"_modules|genindex|py-modindex|search",
    ),
    Source(
        "python-sqlalchemy-doc",
        "MIT",
        "usr/share/doc/python-sqlalchemy-doc/html",
        "**/*.html",
        "html",
        r"changelog|genindex|search",
    ),
    Source(
        "linux-doc-6.1",
        "GPL-2.0-only",
        "usr/share/doc/linux-doc-6.1/html",
        "**/*.html",
        "html",
        r"^(?!(admin-guide|process|mm|filesystems|scheduler|locking|dev-tools|kernel-hacking|power|block|security"
        r"|RCU)/)",
    ),
)
