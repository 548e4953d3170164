"""RUN -> PAGE: one self-contained HTML page and its tables, from a folder that `run` or `compare` wrote.

row (a record, validated), source (folders -> runs of rows; the same instance in several runs), guarantee (what a
verdict says, in words), pictures (inputs and witnesses), page (tables as CSV, Markdown and LaTeX; the page's data;
everything -> HTML), summary (the tables), report (all of it together).

Everything that a folder says is text of strangers: it reaches the page through Jinja's escaping, or as JSON that
scripts put into text nodes. The page's content security policy lets no other script run and nothing be loaded.
"""
