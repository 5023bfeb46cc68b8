"""Comments, strings and keywords of source lines are marked, and everything is escaped."""

from __future__ import annotations

import pytest

from harness.text.page.templates import coloured


@pytest.mark.parametrize(
    ("file", "line", "html"),
    [
        ("k.cu", "for (i < n)  // <n>", '<span class="keyword">for</span> (i &lt; n)  '
         '<span class="comment">// &lt;n&gt;</span>'),
        ("k.cu", "#pragma unroll", '<span class="keyword">#pragma</span> unroll'),
        ("k.cu", 'asm("a // b");', '<span class="keyword">asm</span>(<span class="string">&#34;a // b&#34;</span>);'),
        ("k.py", "if x:  # why", '<span class="keyword">if</span> x:  <span class="comment"># why</span>'),
        ("k.py", "@cuda.jit", '<span class="keyword">@cuda.jit</span>'),
        ("k.py", "form = notable", "form = notable"),
        ("k.cu", "</td>\x1b[31m", "&lt;/td&gt;\\x1b[31m"),
        ("", "", ""),
    ],
)  # fmt: skip
def test_a_line(file: str, line: str, html: str):
    assert str(coloured(line, file)) == html
