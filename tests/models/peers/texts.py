"""Mixed text on which tokenizers are compared token by token, all of it in NFC."""

from __future__ import annotations

TEXTS = (
    "hello",
    " hello hello  hello",
    "The quick brown fox, 12345 times; it's I'LL we've 1,024.5e-7",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich: ÄÖÜ ß",
    "敏捷的棕色狐狸跳过了懒狗。你好，世界",
    "😀👨‍👩‍👧 🇩🇪 ✈️ e\u0301 is not é",
    "def f(x):\n\treturn {'a': x + 1}  # ok\n\n\n\nclass A:\n    pass\r\n",
    "   leading, trailing   ",
    "\n\n\n \t \n",
    "<|im_start|>user\nhello<|im_end|>\n",
    "<|endoftext|>",
    "a<|endoftext|>b <|im_end|> c<tool_call>{}</tool_call>",
    "<|im_start",
    "null\x00byte \u200b zero \ufeff width",
)
