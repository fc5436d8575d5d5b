"""Reports: results go in; one self-contained HTML page, Markdown and figures come out."""
