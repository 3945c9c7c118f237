"""The texts of the golden files: ten languages, scripts, emoji, special tokens spelled out, one token to over the limit."""

SENTENCES = [
    # English
    "The gate of the forebay closes when the turbine trips.",
    "Nothing is lost, nothing is done twice, and nothing is silently wrong.",
    "Who pays for the repair of the old canal, the city or the mill?",
    "don't re-use the v2.1 API (see §4); it's 37% slower!",
    # German
    "Das Wasserschloss gleicht die Schwankungen des Zuflusses aus.",
    "Der Müller öffnete die Schleuse, bevor die Straße überflutet war.",
    "Geschwindigkeitsbegrenzungsüberschreitung",
    # French
    "L'eau monte doucement derrière la vieille écluse.",
    "À quelle heure le contrôleur a-t-il fermé la vanne ? Où ça ?",
    "Ça coûte 12,50 € – garçon, l'addition !",
    # Spanish
    "¿Cuánta agua pasa por la compuerta cada segundo?",
    "El niño soñó con un río que corría hacia la montaña.",
    # Russian
    "Плотина удерживает воду и выравнивает поток.",
    "Съешь ещё этих мягких французских булок, да выпей чаю.",
    # Greek
    "Το νερό κυλά αργά προς την τουρμπίνα.",
    # Arabic
    "يتدفق الماء ببطء نحو التوربين في الصباح.",
    # Hindi
    "नदी का पानी धीरे-धीरे टरबाइन की ओर बहता है।",
    # Chinese
    "水库里的水慢慢流向水轮机。",
    "前池在洪水到来时关闭闸门,保护下游的设备。",
    # Japanese
    "ダムの水はゆっくりとタービンへ流れていきます。",
    "水門を閉める前に、水位を確認してください。",
    # Korean
    "댐의 물이 터빈을 향해 천천히 흐른다.",
    # Turkish, Vietnamese, Polish, Thai: letters with marks
    "İstanbul'da ılık bir öğleden sonra, ığdır İĞDIR.",
    "Nước chảy chậm về phía tuabin dưới chân đập.",
    "Zażółć gęślą jaźń nad śluzą w Łodzi.",
    "น้ำไหลช้าๆไปยังกังหัน",
    # Emoji and symbols
    "🌊 water level rising 🚨🚨 close the gate! 👩🏽‍🔧",
    "👍",
    "≤ 3 × 10⁻⁵ m³·s⁻¹ → ½ of Σ(xᵢ²)",
    "🇩🇪🇫🇷🇯🇵 😀😃😄",
    # Shapes of text
    "a",
    ".",
    "water",
    "   leading and   inner   spaces\tand\ttabs\n\nand lines   ",
    "ALL CAPS AND MiXeD CaSe",
    "cafe\u0301 versus café: decomposed and composed",
    "zero\u200bwidth\u200bspace and soft\u00adhyphen",
    "no\u00a0break\u00a0space and \u3000ideographic space",
    "https://example.org/a/b?c=d&e=%20f#g",
    "user.name+tag@example.co.uk",
    "fn main() { println!(\"{:?}\", vec![1, 2, 3]); }",
    "SELECT doc_id, count(*) FROM vectors GROUP BY 1 HAVING count(*) > 1;",
    "0123456789 3.14159 1,000,000 0x7fff 1e-12",
    "x" * 99,
    "x" * 101,
    "-" * 40,
    "\u0000 a nul, a bell \u0007 and a replacement \ufffd",
    # Special tokens spelled out are text
    "[SEP]",
    "the [SEP] token and the [PAD] token in a sentence",
    "[CLS] [CLS] [MASK] [UNK] [PAD][PAD]",
    "</s> <s> <pad> <unk> <mask> are XLM-R's",
    "[sep] in small letters, [ SEP ] with spaces",
]

WORDS = "the gate of water holds and river flow turns a stone basin near old dam while light falls on every turbine".split()


def run(n, step=7):
    """n words, never quite repeating."""
    return " ".join(WORDS[(i * step + i // 20 + i // 3) % len(WORDS)] for i in range(n))


# 254 words are 256 tokens with the specials: around the limit, and far over it.
MINILM = SENTENCES + [run(60), run(253), run(254), run(255), run(300, 3), run(2000, 11),
                      "水" * 253, "[SEP] " * 120]

# The tiny model has few pieces: lengths count in letters. Positions beyond 256 and 2,048, and one over the limit.
TINY = ["a", "the", "the gate", "water and the river flow", "東京 水 мир שלום über naïve",
        "the <pad> of </s> and <s> in <mask> <unk>", "</s>", "<pad> <pad> <pad>", "[SEP] [PAD]",
        "☃ unknown ☃", run(9), run(40), run(70, 3), run(700, 3), run(1000, 11), run(1700, 5)]

# Tiny models of other likeness: a little of everything, and one text over their limit of 300 tokens.
LIKENESS = ["a", "the gate", "water and the river flow", "東京 水 мир שלום über naïve",
            "the <pad> of </s> and <s> in <mask> <unk>", "[SEP] [PAD]", "☃ unknown ☃", "", run(40), run(400, 3)]

# All three outputs: nothing but specials, one token, an id many times, unknown ones, special tokens spelled out, and one
# text over the limit.
OUTPUTS = ["", "a", "the", "the the the gate the gate", "water and the river flow", "東京 水 мир שלום über naïve",
           "the <pad> of </s> and <s> in <mask> <unk>", "☃ unknown ☃ ☃", run(9), run(12, 3), run(70, 3), run(1700, 5)]
