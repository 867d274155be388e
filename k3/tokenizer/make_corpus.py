#!/usr/bin/env python3
"""Writes corpus/*.txt, the text that small vocabularies are trained on.

Everything comes from the word lists and templates below and from a fixed sequence, so running it again
changes nothing. Usage: k3/tokenizer/make_corpus.py
"""
import pathlib

FOLDER = pathlib.Path(__file__).parent / "corpus"


class Draw:
    """A small fixed generator, so that no library version can change the text."""

    def __init__(self, seed):
        self.state = seed

    def below(self, bound):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self.state >> 33) % bound

    def of(self, choices):
        return choices[self.below(len(choices))]


NOUNS = """house river garden engine letter window teacher market bridge winter summer station library
morning evening mountain forest village harbour machine question answer number example language kernel
memory thread server request token page record weather journey kitchen doctor painter farmer captain
sailor neighbour brother sister friend child picture newspaper mirror candle basket blanket bottle
ticket platform signal valley island meadow orchard cottage castle museum theatre concert story""".split()
ADJECTIVES = """old new small large quiet loud bright dark heavy light warm cold gentle careful early late
strange simple broken hidden narrow wide empty full distant familiar honest patient curious clever
wooden golden silver green yellow grey ancient modern useful ordinary""".split()
VERBS = """opened closed carried followed watched found lost remembered forgot repaired painted counted
measured crossed reached answered asked described explained wanted needed noticed collected returned
borrowed wrote read built moved kept left""".split()
ADVERBS = """slowly quickly quietly carefully suddenly finally often rarely always never perhaps almost
together again already still""".split()
PLACES = """near the station|behind the library|across the river|under the bridge|beside the window|in the
garden|at the market|on the platform|along the road|outside the city|beyond the hills|at home""".replace(
    "\n", " ").split("|")
TIMES = """yesterday|this morning|last winter|on Monday|two days later|before sunrise|after dinner|at noon
|in 1987|a week ago|every evening|some years ago""".replace("\n", "").split("|")
NAMES = "Anna Peter Maria James Olga Samir Mei Kofi Lucia Henrik Yuki Fatima Thomas Elena".split()


def english(draw, count):
    lines = []
    for _ in range(count):
        noun, other, third = draw.of(NOUNS), draw.of(NOUNS), draw.of(NOUNS)
        adjective, verb = draw.of(ADJECTIVES), draw.of(VERBS)
        name, friend = draw.of(NAMES), draw.of(NAMES)
        place, time, adverb = draw.of(PLACES), draw.of(TIMES), draw.of(ADVERBS)
        shape = draw.below(9)
        if shape == 0:
            lines.append(f"The {adjective} {noun} {place} was {draw.of(ADJECTIVES)}, and {name} {verb} it {adverb}.")
        elif shape == 1:
            lines.append(f"{name} {verb} the {noun} {time}, but nobody knew why the {other} had not been there.")
        elif shape == 2:
            lines.append(f'"Where is the {noun}?" asked {name}. "I think it\'s {place}," said {friend}.')
        elif shape == 3:
            lines.append(f"If the {noun} is {adjective}, then the {other} should be {draw.of(ADJECTIVES)} as well.")
        elif shape == 4:
            lines.append(f"{time.capitalize()}, a {adjective} {noun} and {draw.below(98) + 2} other things were {verb} {place}.")
        elif shape == 5:
            lines.append(f"We don't know whether they've {verb} the {other}; we'll ask {name} about the {third}.")
        elif shape == 6:
            lines.append(f"There is nothing {adjective} about a {noun}: it has a {other}, a {third} and no more.")
        elif shape == 7:
            lines.append(f"How did {name} find the {adjective} {noun} {place}? {friend} couldn't remember.")
        else:
            lines.append(f"They {adverb} {verb} the {noun} because the {adjective} {other} would not open.")
        if draw.below(6) == 0:
            lines.append("")
    return "\n".join(lines) + "\n"


def code(draw, count):
    blocks = []
    for i in range(count):
        noun, other = draw.of(NOUNS), draw.of(NOUNS)
        verb, size = draw.of(["load", "store", "count", "merge", "split", "find", "write"]), 2 ** draw.below(12)
        shape = draw.below(6)
        if shape == 0:
            blocks.append(f"def {verb}_{noun}({other}, limit={size}):\n    result = []\n    for index, item in "
                          f"enumerate({other}):\n        if index >= limit:\n            break\n        "
                          f"result.append(item)\n    return result\n")
        elif shape == 1:
            blocks.append(f"int {verb}_{noun}(const std::vector<int>& {other}) {{\n  int total = 0;\n  for (size_t "
                          f"i = 0; i < {other}.size(); ++i) {{\n    total += {other}[i];\n  }}\n  return total;\n}}\n")
        elif shape == 2:
            blocks.append(f'{{"name": "{noun}", "type": "function", "arguments": {{"{other}": {size}, "unit": '
                          f'"celsius", "values": [1, 2, {i}], "ok": true, "none": null}}}}\n')
        elif shape == 3:
            blocks.append(f"#include <{noun}.h>\nnamespace {other} {{\nstruct {noun.capitalize()} {{\n  "
                          f"std::string name;\n  uint64_t bytes = {size};\n}};\n}}  // namespace {other}\n")
        elif shape == 4:
            blocks.append(f"$ cat /var/log/{noun}.log | grep -i '{other}' | sort | uniq -c | head -n {size}\n"
                          f"SELECT id, {noun}, COUNT(*) FROM {other} WHERE {noun} >= {i} GROUP BY {noun};\n")
        else:
            blocks.append(f"fn {verb}_{noun}(&self) -> Result<u32, Error> {{\n\tlet {other} = self.{other}?;\n\t"
                          f"match {other} {{\n\t\tSome(x) => Ok(x + 0x{size:x}),\n\t\tNone => Err(Error::Empty),\n\t}}\n}}\n")
    return "\n".join(blocks)


def numbers(draw, count):
    lines = []
    for i in range(count):
        a, b = draw.below(10 ** (1 + i % 6)), draw.below(1000)
        lines.append(draw.of([
            f"{a} + {b} = {a + b}",
            f"{a} * {b} = {a * b}; {a} - {b} = {a - b}",
            f"20{draw.below(90) + 10}-{draw.below(12) + 1:02d}-{draw.below(28) + 1:02d}T{draw.below(24):02d}:"
            f"{draw.below(60):02d}:{draw.below(60):02d}Z",
            f"{a / 7:.3f} kg, {b} %, -{a}e-{draw.below(9)}, {a:,} EUR, #{b:04x}, v{i}.{b}.0",
            f"{i}. {draw.of(NOUNS)}: {a} ({b} / {draw.below(100)})",
        ]))
    return "\n".join(lines) + "\n"


LANGUAGES = [
    "Der alte Mann öffnete das Fenster und sah, dass es über Nacht geschneit hatte. Die Straße war weiß, "
    "und niemand ging hinaus. „Wir müssen heute zu Hause bleiben“, sagte er, „aber morgen fahren wir.“",
    "Jede Maschine hat eine Aufgabe, und jede Aufgabe braucht Zeit. Können Sie mir bitte sagen, wie viel "
    "Uhr es ist? Natürlich, es ist gleich halb acht. Für größere Bücher gehört der Schlüssel dazu.",
    "La petite maison près de la rivière était vide depuis l'été. Où sont-ils allés ? Personne ne le "
    "savait, mais on disait qu'ils avaient trouvé du travail à la ville. C'était déjà l'automne.",
    "Il faut d'abord mesurer, puis calculer, et enfin vérifier le résultat. Les élèves ont écrit leurs "
    "réponses dans le cahier ; le professeur les a lues avec attention.",
    "El niño preguntó por qué el mar es azul, y su abuela le contó una historia. ¿Cuántos años tienes? "
    "¡Qué sorpresa! Mañana volveremos a la montaña con más tiempo y menos equipaje.",
    "La stazione era piena di gente che aspettava il treno della sera. Perché non viene nessuno? È già "
    "tardi, ma la città non dorme mai; così abbiamo deciso di camminare fino al porto.",
    "A menina abriu a janela e viu que chovia. Não há nada de novo, disse o irmão, mas amanhã será "
    "diferente. As crianças já estão na escola e os pais trabalham até às seis horas.",
    "Stary most nad rzeką został naprawiony w zeszłym roku. Proszę powiedzieć, gdzie jest najbliższa "
    "biblioteka? Książki są ciężkie, ale każda z nich ma swoją historię. Dziękuję bardzo.",
    "Gamla stan är vacker på vintern. Vi gick över bron och såg båtarna i hamnen. Hur mår du idag? Jag "
    "mår bra, tack, men jag måste åka hem före klockan åtta.",
    "Bugün hava çok güzel, bu yüzden bahçede oturuyoruz. Kitabı okudun mu? Evet, ama sonunu hâlâ "
    "anlamadım. İstanbul'dan gelen mektup dün ulaştı.",
    "Старый мост через реку починили прошлым летом. Где находится библиотека? Она рядом с вокзалом, за "
    "высоким домом. Каждое утро мы пьём чай и читаем газету, потому что торопиться некуда.",
    "Машина работает быстро, но память ограничена. Если число больше ста, напишите его ещё раз. Спасибо, "
    "до свидания! Новый год начинается зимой, когда идёт снег.",
    "Η παλιά γέφυρα πάνω από το ποτάμι επισκευάστηκε πέρυσι. Πού είναι η βιβλιοθήκη; Κάθε πρωί πίνουμε "
    "καφέ και διαβάζουμε την εφημερίδα.",
    "這座老橋去年修好了。圖書館在哪裡？它在車站旁邊。每天早上我們喝茶、看報紙，因為沒有什麼急事。",
    "今天天气很好，我们在花园里坐着。你读过这本书吗？读过，但是我还不明白它的结尾。机器运行得很快，可是内存有限。"
    "如果数字大于一百，请再写一次。谢谢，再见！",
    "語言模型把文字分成詞元，然後預測下一個詞元。请用中文回答这个问题：一加一等于几？答案是二。",
    "今日はとても良い天気なので、庭に座っています。この本を読みましたか。はい、でも最後がまだ分かりません。"
    "図書館はどこにありますか。駅のとなりにあります。ありがとうございます。",
    "コンピュータはデータを計算して、結果をメモリに書きます。毎朝、コーヒーを飲みながら新聞を読みます。",
    "오늘은 날씨가 아주 좋아서 정원에 앉아 있습니다. 이 책을 읽었습니까? 네, 하지만 아직 끝을 이해하지 못했습니다. "
    "도서관은 어디에 있습니까? 역 옆에 있습니다. 감사합니다.",
    "كان الجسر القديم فوق النهر مغلقا في الشتاء. أين المكتبة؟ إنها بجانب المحطة. نشرب الشاي كل صباح "
    "ونقرأ الجريدة لأننا لسنا في عجلة من أمرنا. شكرا جزيلا.",
    "הגשר הישן מעל הנהר תוקן בשנה שעברה. איפה הספרייה? היא ליד התחנה. כל בוקר אנחנו שותים קפה.",
    "पुराना पुल पिछले साल ठीक किया गया था। पुस्तकालय कहाँ है? वह स्टेशन के पास है। हम हर सुबह चाय पीते हैं और अख़बार पढ़ते हैं।",
    "สะพานเก่าข้ามแม่น้ำได้รับการซ่อมแซมเมื่อปีที่แล้ว ห้องสมุดอยู่ที่ไหน อยู่ข้างสถานี ขอบคุณมาก",
    "Cây cầu cũ bắc qua sông đã được sửa vào năm ngoái. Thư viện ở đâu? Nó ở cạnh nhà ga. Cảm ơn rất nhiều.",
    "Good morning! 😀 See you at the café ☕ at 8:30 — don't be late 🚀🚀 (yes, really) 👍🏽 ❤️ 👩‍💻 🇩🇪 🎉✨",
    "α + β ≤ γ, √2 ≈ 1.41421, ∑ xᵢ² → ∞, 25 °C ± 0.5 °C, 3 × 4 = 12, ½ + ¼ = ¾, © 2024 — “quoted” … ‘text’",
]


def languages(draw):
    # Each paragraph twice, in a drawn order: what is common in a language is then common here.
    lines = list(LANGUAGES)
    for _ in range(len(LANGUAGES)):
        lines.append(draw.of(LANGUAGES))
    return "\n\n".join(lines) + "\n"


def main():
    FOLDER.mkdir(exist_ok=True)
    draw = Draw(20240917)
    texts = {"english.txt": english(draw, 330), "code.txt": code(draw, 48), "numbers.txt": numbers(draw, 160),
             "languages.txt": languages(draw)}
    for name, text in texts.items():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
