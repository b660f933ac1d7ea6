"""Sentences in ten languages, written for the tests, and documents drawn from them.

A language is two or three lists of parts; any member of one list goes with any member of the next, so that a few lines give hundreds of
sentences. A document draws each part at most once until its list is used up, so that a short document repeats no phrase.
Guarantee: the same arguments give the same text. Cost: microseconds.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

ENGLISH = (
    """
Early in the morning
On the second day of the fair
Before the river froze
When the rain had stopped at last
In the year of the long winter
Some weeks after the harvest
To everyone's surprise
Without telling a soul
Between two visits to the market
While the bread was in the oven
As far as anybody can remember
During the last hour of daylight
Because the bridge was closed
For reasons that nobody wrote down
Not long before the wedding
Under a very low grey sky
With a little help from the neighbours
At the far end of the valley
Once the snow had melted away
Though the road was bad
Late on Sunday
Out of simple curiosity
By the light of one candle
Whenever the wind came from the north
""",
    """
the baker and his younger sister
a clerk of the town library
our teacher of geography
the woman who repairs clocks
two fishermen from the harbour
a young doctor with a brown bag
the owner of the blue house
every child in the school choir
the keeper of the lighthouse
an old friend of my grandmother
the captain of the ferry
a painter nobody had heard of
the daughter of the miller
three students on their bicycles
the man who sells umbrellas
a stranger in a green coat
the new mayor of the village
an engineer from the railway
the cook of the small hotel
my cousin with the red beard
the postman and his dog
a carpenter called Edwin Marsh
the widow across the street
some visitors from the island
""",
    """
carried a heavy basket of apples up the hill
found a letter behind the kitchen cupboard
counted the swallows on the telegraph wire
promised to repair the roof of the chapel
drew a careful map of all the wells
told a long story about a lost ring
planted a row of pear trees along the wall
waited for the train until it was dark
borrowed a ladder that had been painted twice
learned to play the violin with cold fingers
wrote down the names of the missing boats
asked whether the mill could be sold again
cooked enough soup to feed forty people
opened a window that had been shut for years
walked round the lake to think about money
explained how the tides move sand and stones
mended the nets that hung beside the pier
kept a diary about clouds and other weather
refused to sign the paper with the seal
brought home a cat with only one ear
measured the depth of the well with string
sold the last horse to a travelling circus
built a shed out of doors and driftwood
sang so softly that the geese fell asleep
read the newspaper aloud from end to end
cleaned every lamp between here and the church
hid the silver spoons inside a clay pot
dreamed of a garden that grew under water
argued about the price of salt and candles
taught the parrot to say good evening
lost a glove that was never seen again
paid for the damage with honey and cheese
crossed the square with a tray of glasses
remembered the song that his father had whistled
painted the gate in the colour of mustard
watched the bees leave their hive in July
invited the whole street to a game of cards
slept on the floor because the bed was full
carved a small ship from a piece of walnut
answered each question with another question
""",
)
OTHERS = {
    "de": (" ", ".", """
Der Bäcker aus der schönen Altstadt
Die jüngste Schwester des Müllers
Ein fröhlicher Händler aus Österreich
Die Lehrerin für Französisch
Der ältere Gärtner mit dem grünen Hut
Unsere Nachbarin aus dem fünften Stock
Der müde Fährmann am großen Fluss
Eine Künstlerin aus Köln
""", """
hat gestern früh für die ganze Straße Brötchen und Käse gekauft
möchte nächste Woche über die Brücke nach Süden gehen
erzählt den Schülern ungewöhnliche Märchen über Bären und Füchse
pflückt Äpfel und süße Kirschen hinter dem Häuschen
hört am späten Abend gerne das Läuten der Glocken über den Dächern
führte die Gäste durch die Wälder bis zur höchsten Stelle
schließt die Tür, weil draußen ein kühler Wind weht
fährt täglich mit dem Zug übers Gebirge nach München
trägt schwere Körbe voller Früchte auf den Markt
wünscht sich für das Frühjahr ein größeres Gewächshaus
verkauft seit Jahren Bücher, Möbel und gebrauchte Räder
überlegt, ob die Gemüsesuppe nicht noch etwas Öl verträgt
"""),
    "fr": (" ", ".", """
Le boulanger du vieux quartier
La sœur cadette du forgeron
Un écrivain à la retraite
L'élève le plus âgé du collège
Notre voisine du cinquième étage
Le pêcheur de la forêt d'à côté
Une infirmière très appréciée
Le maire fraîchement élu
""", """
a préparé des crêpes et un gâteau à la crème pour la fête
espère être récompensé après des années de réflexion
a traversé la rivière gelée à la fin de l'hiver
répète chaque soirée la même mélodie légère au théâtre
s'est promené près du château abandonné où rêvent les poètes
a réparé l'évier, la fenêtre et même la cheminée
était persuadé que le café serait fermé à cause de la grève
préfère les pêches mûres et le pâté de la région
a décidé d'étudier l'histoire des îles de la Méditerranée
écoute la météo dès le réveil et sort malgré la tempête
a éteint les lumières là-bas, derrière la bibliothèque
espérait que l'été serait doux, sans sécheresse ni incendie
"""),
    "es": (" ", ".", """
El panadero de la plaza pequeña
La hermana menor del alcalde
Un médico jubilado de Cádiz
Nuestra vecina del tercer piso
El capitán del último barco
Una niña con un cuaderno rojo
El dueño de la librería
La profesora de música
""", """
compró ayer por la mañana pan, queso y un kilo de limones
quiere aprender a nadar antes de que llegue el otoño
contó una historia increíble sobre un tren que nunca llegaba
pintó la puerta del jardín con un color que a nadie le gustó
espera que mañana no llueva durante la fiesta del pueblo
encontró una carta muy antigua detrás del armario
camina todos los días hasta el faro para mirar el mar
plantó tres árboles jóvenes junto al camino de la montaña
canta en voz baja cuando cree que nadie la está escuchando
arregló el reloj de la iglesia sin cobrar ni un céntimo
"""),
    "ru": (" ", ".", """
Старый пекарь с соседней улицы
Младшая сестра нашего учителя
Молодой врач из маленького города
Хозяйка деревянного дома у реки
Рыбак с далёкого северного острова
Библиотекарь в зелёном пальто
Мой двоюродный брат Павел
Почтальон со своей собакой
""", """
каждое утро несёт на рынок корзину свежего хлеба
долго рассказывал детям сказку о потерянном кольце
нашёл под лестницей письмо без подписи и марки
посадил вдоль забора пять яблонь и одну грушу
ждал последний поезд до самой темноты
хочет весной перекрасить крышу и починить ворота
играет по вечерам на скрипке для всей деревни
подробно описал в дневнике первую зимнюю бурю
купил на ярмарке лошадь, которую никто не хотел брать
объяснил гостям, почему мост снова закрыт
"""),
    "ja": ("", "。", """
町の小さなパン屋の主人は
図書館で働いている姉は
灯台を守っている老人は
隣の家に住む先生は
北の島から来た漁師は
緑色のコートを着た旅人は
古い時計を直す職人は
学校の合唱団の子どもたちは
""", """
毎朝とても早く起きて、新しいパンを市場まで運びます
台所の棚の後ろで、昔の手紙を一通見つけました
雨がやんでから、湖のまわりをゆっくり歩きました
春になったら、庭に梨の木を三本植えるつもりです
暗くなるまで、駅で最後の電車を待っていました
村の人たちに、なくした指輪の長い話をしてくれました
橋が閉まっているので、船で川を渡ることにしました
毎晩、窓を開けてバイオリンの練習をしています
新聞を最初から最後まで声に出して読みました
冬の嵐について、日記にくわしく書きました
"""),
    "zh": ("", "。", """
镇上的老面包师
图书馆里的年轻职员
住在河边的钟表匠
我们学校的地理老师
从北方岛屿来的渔夫
穿绿色大衣的陌生人
小旅馆的厨师
邻居家的奶奶
""", """
每天清晨都把刚烤好的面包送到市场上去
在厨房的柜子后面发现了一封很旧的信
打算明年春天沿着围墙种三棵梨树
一直在车站等到天黑才坐上最后一班火车
给孩子们讲了一个关于丢失戒指的长故事
因为大桥已经关闭，只好坐船过河
下雨之前修好了教堂的屋顶和大门
每天晚上都在窗前练习小提琴
把报纸从头到尾大声地读了一遍
在日记里仔细记录了冬天的第一场风暴
"""),
    "ar": (" ", ".", """
الخباز العجوز في الحي القديم
الطبيبة الشابة من القرية المجاورة
معلم الجغرافيا في مدرستنا
صاحب البيت الأزرق عند النهر
الصياد القادم من الجزيرة البعيدة
الرجل الذي يصلح الساعات
جارتنا في الطابق الثالث
أمين المكتبة الجديد
""", """
يحمل كل صباح سلة من الخبز الطازج إلى السوق
وجد رسالة قديمة خلف خزانة المطبخ ولم يفتحها
ينتظر القطار الأخير حتى يحل الظلام على المحطة
يريد أن يزرع ثلاث أشجار من الكمثرى قرب الجدار
حكى للأطفال قصة طويلة عن خاتم ضائع في البحر
كتب في دفتره عن أول عاصفة في هذا الشتاء
عبر النهر في قارب صغير لأن الجسر كان مغلقا
قرأ الصحيفة بصوت عال من أولها إلى آخرها
يتعلم العزف على العود كل مساء أمام النافذة
دعا أهل الشارع كلهم إلى العشاء بعد الحصاد
"""),
    "hi": (" ", "।", """
गाँव का बूढ़ा नानबाई
पुस्तकालय की नई कर्मचारी
हमारे विद्यालय का भूगोल का शिक्षक
नदी के किनारे रहने वाला घड़ीसाज़
दूर के द्वीप से आया मछुआरा
हरे कोट वाला एक अजनबी
छोटे होटल का रसोइया
सड़क के उस पार रहने वाला डाकिया
""", """
हर सुबह ताज़ी रोटी की टोकरी लेकर बाज़ार जाता है
रसोई की अलमारी के पीछे एक पुराना पत्र ढूँढ़ रहा था
अँधेरा होने तक आख़िरी रेलगाड़ी की प्रतीक्षा करता रहा
अगले वसंत में दीवार के पास नाशपाती के तीन पेड़ लगाना चाहता है
बच्चों को खोई हुई अँगूठी की लंबी कहानी सुनाता है
अपनी डायरी में सर्दियों के पहले तूफ़ान के बारे में लिखता है
पुल बंद होने के कारण नाव से नदी पार करता है
हर शाम खिड़की के सामने बैठकर वायलिन बजाना सीखता है
पूरा अख़बार शुरू से अंत तक ज़ोर से पढ़ता है
फ़सल कटने के बाद पूरी गली को भोजन पर बुलाता है
"""),
    "ko": (" ", ".", """
마을의 늙은 빵집 주인은
도서관에서 일하는 누나는
우리 학교의 지리 선생님은
강가에 사는 시계 수리공은
먼 섬에서 온 어부는
초록색 외투를 입은 나그네는
작은 여관의 요리사는
길 건너편에 사는 우체부는
""", """
매일 아침 갓 구운 빵을 바구니에 담아 시장으로 간다
부엌 찬장 뒤에서 아주 오래된 편지 한 통을 찾았다
날이 어두워질 때까지 역에서 마지막 기차를 기다렸다
내년 봄에는 담을 따라 배나무 세 그루를 심으려고 한다
아이들에게 잃어버린 반지에 대한 긴 이야기를 들려주었다
다리가 막혀서 작은 배를 타고 강을 건너기로 했다
비가 그친 뒤에 호수 둘레를 천천히 걸었다
저녁마다 창문 앞에서 바이올린을 연습한다
신문을 처음부터 끝까지 큰 소리로 읽었다
일기장에 겨울의 첫 폭풍에 대해 자세히 적었다
"""),
}  # fmt: skip
LANGUAGES = ("en", *OTHERS)


def parts_of(language: str) -> list[list[str]]:
    """The lists of parts that a sentence is joined from."""
    blocks: Sequence[str] = ENGLISH if language == "en" else OTHERS[language][2:]
    return [block.strip().splitlines() for block in blocks]


def sentences(language: str, count: int, seed: object) -> Iterator[str]:
    """So many sentences; a part comes again only when all others of its list have been used."""
    between, end = OTHERS[language][:2] if language != "en" else (" ", ".")
    draw, lists = random.Random(f"{language}/{seed}"), parts_of(language)
    piles: list[list[str]] = [[] for _ in lists]
    for _ in range(count):
        chosen = []
        for pile, parts in zip(piles, lists, strict=True):
            if not pile:
                pile += draw.sample(parts, len(parts))
            chosen.append(pile.pop())
        yield between.join(chosen) + end


def paragraphs(language: str, count: int, seed: object, each: int = 4) -> list[str]:
    """Paragraphs of `each` sentences."""
    found = list(sentences(language, count * each, seed))
    return [(" " if OTHERS.get(language, " ")[0] else "").join(found[i : i + each]) for i in range(0, len(found), each)]


def essay(number: int) -> str:
    """An English document of 6 to 20 sentences in a few lines, of which some begin or end as lines of web pages do."""
    draw = random.Random(f"essay/{number}")
    lines = paragraphs("en", draw.randint(2, 5), f"essay/{number}", draw.choice([3, 4, 4]))
    if number % 3 == 0:
        lines[-1] = lines[-1][:-1] + ", as they say 'in those days.'"
    if number % 4 == 0:
        lines.append(f"Posted in Stories, part {number}")
    if number % 5 == 0:
        lines.insert(1, f'The sign read: "Closed until {number % 28 + 1} May [2]."')
    if number % 7 == 0:
        lines.append("We use cookies on this page, which you may refuse.")
    if number % 11 == 0:
        lines += [f"• {line}" for line in sentences("en", 2, f"list/{number}")]
    return "\n".join(lines)
