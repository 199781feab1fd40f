"""Tells whether the words and signs right beside a number are known to leave it as it is.

"18 eggs are left" gives 18. "18 short", "@18", "Windows 18" and "18 in hexadecimal" do not: a word or sign that is not
listed here, and that the question does not have, may change the number. An answer with such a word is compared as text.
The lists are English. To a question in another language a word of that language is taken for the name of what is
counted. To an English question words of another script are known if they are counters, frequent names or frequent
verbs: "18 个鸡蛋", but not "18 打", which is 18 dozen.
"""

import re
import unicodedata
from functools import lru_cache

from metaprobe.records.answers.texts import stem, without_accents, words
from metaprobe.records.answers.units import QUESTION_READ, unit_at

MOST_BESIDE_NUMBER = 80
"""Most characters before and after a number in which the words beside it are searched."""
MOST_DESCRIBING = 2
"""Most unknown words between a number and the plural that it counts: "18 large brown eggs"."""

_SIGNS_BEFORE = frozenset(".,:;=≈~≃≅≡!?()\"'“”‘’„«»‹›*`_#-–—•·…>+$|¿¡。、，；！？：「」『』（）《》〈〉【】।،؛؟۔√")
"""Signs right before a number that set sentences apart, quote or emphasise. Operators among them are refused before."""
_SIGNS_AFTER = frozenset(".,:;!?()\"'“”‘’„«»‹›*`_-–—…=→$¿¡。、，；！？：「」『』（）《》〈〉【】।،؛؟۔|[]<>+^/\\{}~#")
"""Signs right after a number."""
_PICTURES = frozenset("✅✔✓☑🎉🎊✨👉➡➜🟢💡📌🔢🧮🏆⭐\ufe0f\u200d")
"""Pictures that models put beside an answer that holds. A cross or a stop sign takes it back, and is not among them."""
_APPROXIMATING_WORDS = """
    about approximately approx around roughly circa exactly precisely just only simply merely etwa ungefahr rund
    zirka genau environ aproximadamente cerca ongeveer okolo ungefar priblizno early late mid even indeed now
    currently still then therefore thus so hence finally overall altogether also always maybe initially think
    believe guess reckon"""
_SAYING_WORDS = """
    is are was were be being been am equals equal equalled gives give gave given makes make made making yields
    yield get gets got getting obtain obtained has have had having contains contain contained holds hold held
    includes include totals totalled totaled becomes became remains remain remained remaining leaves leave left
    leaving see count counted counts needs need needed requires require required takes take took uses use used
    wants costs cost pays pay paid paying spends spend spent spending earns earn earned earning receives receive
    received receiving charges charged owes owed saves saved sells sell sold selling buys buy bought buying
    collects collected collect produces produced lays laid eats ate keeps keep kept finds found reads wrote writes
    written write read walks walked runs ran drives drove driven swims swam travels traveled travelled covers
    covered works worked working bakes baked plants planted picks picked scores scored score weighs weighed
    measures measured climbed caught catches brings brought carries carried carry fills filled fill gained gaining
    experienced returns returned increase increased increases grew grows grown rose rises risen up down decrease
    decreased decreases fell falls fallen drop dropped drops lower lowers declined declines loses lost profit
    shrank shrinks shrunk reduced reduces mowed shoveled shovelled teaches prints print printed outputs output
    outputted calculated answered ad answer says say shows show shown represents represented operates sharing reaches
    reached come comes came born called"""
_SAYING_ABROAD = """
    sind ist hat haben bleiben gibt sont est reste restent avons ont hay son quedan
    queda tiene tienen restano resta sono ha hanno blijven zijn heeft hebben restam sao tem zostaje jest"""
"""Words of other languages before a number. What is counted is then named in that language too."""
_SAYING_IN_SCRIPTS = """
    осталось остались осталась остался останется остаётся получается получится получилось будет равно равен равна
    это есть всего итого ответ итог сумма примерно около залишилося залишилось відповідь всього
    الجواب الإجابة هو هي المجموع يساوي تبقى بقي يتبقى لديها لديه عدد
    उत्तर कुल शेष बचे बचा लगभग היא הוא התשובה נשארו נותרו סך
    ειναι μενουν απομενουν εμειναν συνολο απαντηση συνολικα คือ เหลือ คำตอบ ทั้งหมด"""
"""Words of other scripts before a number in an answer to an English question."""
_EAST_COUNTERS = (
    "个個人名只隻本枚歳岁回次颗顆条條张張辆輛块塊件位棵朵头頭匹把台冊册杯瓶页頁つ개명살마리권장대원알점번쪽병잔"
)
"""Signs of Chinese, Japanese and Korean that count things one by one. Those for pairs and dozens are not among them."""
_NAMES_IN_EAST = """
    鸡蛋 雞蛋 蛋 苹果 蘋果 书 書 球 学生 學生 孩子 儿童 老师 花 鱼 魚 鸟 鳥 羊 牛 马 馬 猫 狗 鸡 牙 牙齿 糖果 糖
    饼干 玩具 铅笔 橙子 橘子 香蕉 硬币 朋友 男孩 女孩 女生 男生 问题 分 票 卵 りんご リンゴ 子供 生徒 鉛筆
    달걀 계란 사과 학생 아이 사람 책 공 사탕"""
_EAST_SENTENCE_ENDS = "(?:です|である|だ|了|입니다|이다|이|가)?"
_NAMES_IN_SCRIPTS = """
    штук штука штуки шт яиц яйцо яйца яблок яблоко яблока книг книга книги человек человека детей ребёнок ребёнка
    учеников ученик ученика студентов студент студента предметов страниц страница страницы конфет конфета конфеты
    очков очка очко билетов билет билета монет монета монеты машин машина машины цветов цветок цветка шаров шариков
    карандашей друзей вопросов деревьев кошек собак коров кур яєць яйце осталось остались осталась всего
    بيضة بيض بيضات تفاحة تفاحات كتاب كتب شخص أشخاص طفل أطفال طالب طلاب قطعة قطع अंडे अंडा सेब किताबें किताब लोग
    बच्चे छात्र αυγα αυγο μηλα μηλο βιβλια παιδια ατομα μαθητες ביצים תפוחים ספרים ילדים אנשים תלמידים ฟอง ลูก คน ใบ
    เล่ม œufs œuf"""
"""Frequent names of what is counted, in other scripts than the English one, in an answer to an English question."""
_RESULT_NAMES = """
    answer result total sum product difference quotient average mean median mode value number amount count
    remainder profit revenue cost price balance solution conclusion output age score years earnings"""
_POINTING_WORDS = """
    the a an these those this that all another other additional remaining extra first last entire whole full each
    its their his her my our your it he she they we i you and since if when because as for in on at with to of
    which who where after assuming from"""
_WORDS_BEFORE = frozenset(
    f"{_APPROXIMATING_WORDS} {_SAYING_WORDS} {_SAYING_ABROAD} {_RESULT_NAMES} {_POINTING_WORDS}".split()
)
"""Words that may stand right before a number that is the answer."""
_SAYING_WORDS_ABROAD = frozenset(_SAYING_ABROAD.split()) - {"has", "son"}
_WORDS_BEFORE_OF = frozenset(
    f"""
    {_RESULT_NAMES} totals sums distance length width height weight area volume speed time rate payment salary wage
    income loss bill change discount fee tax charge savings consists consist consisting instead worth group share
    supply increase decrease reduction drop fall rise gain population perimeter temperature age kind sort combined
    capacity maximum minimum""".split()
)
"""Words before "of" and a number: "a total of 18". After other words "of" may take a part or an inverse."""

_WORDS_GOING_ON = """
    is are was were be been would will should can could may might must has have had do does did because since as
    so that which who whom where when while if then than after before during until once whenever for from of on at
    by with into onto per each every apiece a an the this these those their his her its my our your he she they it
    we i you to between among step-by-step originally change gap difference alone still left remaining remain
    remains remained total totally altogether together overall combined more less fewer extra additional leftover
    away back again now today tomorrow yesterday daily weekly monthly yearly annually hourly old
    long tall high wide deep large worth only exactly approximately respectively too instead longer shorter taller
    higher lower older younger larger smaller bigger faster slower heavier lighter wider greater cheaper farther
    further needed used sold spent paid earned kept saved eaten bought lost caught gave given made gives makes get
    gets got go goes went come comes came need want wants work works live lives say says earn earns pay pays take
    takes ate drank read wrote available unsold unused whole full equal left-over correct right indeed already
    also both printed calculated ad ce bce eur usd gal units unit people students children kids men women person
    child man woman adults adult fish sheep deer mice feet teeth geese dice oxen cattle aircraft dozen half items"""
_WORDS_AFTER = frozenset(_WORDS_GOING_ON.split()) - {"too", "half", "dozen"}
"""Words that may stand right after a number, or after what it counts."""
_IRREGULAR_PLURALS = frozenset(
    """
    people children men women mice feet teeth geese dice oxen cattle fish sheep deer aircraft shrimp salmon trout
    person child man woman fruit furniture""".split()
)
"""Names of what is counted that do not end like a plural."""
_NEXT_WORDS_OF: dict[str, frozenset[str]] = {
    "in": frozenset(
        """all total the a an each every her his their this that those these our my one addition cash change it which
        dollars cents euros order profit number and""".split()
    ),
    "and": frozenset("he she they it we i the so that this his her their there is are was has have".split()),
    "over": frozenset("the a an his her their all this these that".split()),
    "out": frozenset(("of",)),
    "all": frozenset("together in told the of day".split()),
    "or": frozenset(("so",)),
    "under": frozenset("the this these".split()),
    "up": frozenset(("and", "from", "to")),
}
"""Maps a word after a number to the words of which one must follow it: "18 in total", but not "18 in hexadecimal"."""
_NOT_COUNTED = frozenset(
    """
    times perhaps always besides does goes grand gross score scores couple couples braces trios quartets sides
    hundreds thousands millions billions dozens tens percents halves thirds quarters fifths degrees bits
    twos threes fours fives sixes sevens eights nines doubles trebles triples squares cubes roots powers logs
    factorials inverses reciprocals negatives grosses
    docenas docena decenas decena cientos centenas centena pares medios medias tercios cuartos veces vezes
    dezenas dezena duzias duzia dúzias metades tercos quartos dozzine dozzina decine decina centinaia migliaia paia paio
    volte douzaines douzaine dizaines dizaine centaines centaine milliers paires paire fois moities tiers
    dutzend dutzende paar paare hunderte zehner halbe drittel viertel dozijn tientallen honderden keer tuziny tuzin
    десятков десяток десятка дюжин дюжина дюжины сотен сотня сотни пар пара пары раз раза половин половины половина
    третей четвертей пятков пяток दर्जन जोड़े जोड़ी गुना सैकड़ा δεκαδες δωδεκαδες ζευγαρια ζευγη φορες εκατονταδες
    دزينة دزينات زوج أزواج مرات مئات عشرات תריסר תריסרים זוגות עשרות מאות פעמים โหล คู่ เท่า
    打 双 對 对 雙 倍 成 组 組 켤레 쌍 배 다스""".split()
)
"""Words that look like the name of what is counted, but multiply or divide the number or count nothing: plurals of
English, and words for pairs, tens, dozens, hundreds and parts in other languages.
"""
_NOTATION_WORDS = frozenset("base hexadecimal hex binary octal decimal roman degrees radians modulo".split())
"""Words that name how a number is written, and no place or language, after "in"."""
_ENGLISH_QUESTION_WORDS = frozenset(
    "how what which who whom when where why find calculate compute determine solve evaluate the many much give".split()
)
_NOT_COUNTED |= frozenset(map(without_accents, _NOT_COUNTED))
_KNOWN_IN_SCRIPTS = frozenset(without_accents(f"{_SAYING_IN_SCRIPTS} {_NAMES_IN_SCRIPTS}").lower().split())
_EAST_AFTER = re.compile(rf"[{_EAST_COUNTERS}]?の?(?:{'|'.join(_NAMES_IN_EAST.split())})?{_EAST_SENTENCE_ENDS}")
"""Matches a counter or a name right after a number in Chinese, Japanese or Korean."""
_EAST_BEFORE = re.compile(r".*(?:[是为為有共计計约約剩下得到于於はがで은는총약]|答案|答え|정답|모두)", re.S)
"""Matches words of Chinese, Japanese or Korean that may lead to a number: "还剩下"."""
_NOT_NAMES = _WORDS_AFTER | _WORDS_BEFORE | _NEXT_WORDS_OF.keys() | _NOT_COUNTED | _ENGLISH_QUESTION_WORDS
"""Words that do not name what is counted."""
_PLURAL = re.compile(r"[a-z]{2,}[a-hj-rtv-z]s")
_VOWEL_SIGNS = "".join(filter(lambda sign: unicodedata.category(sign)[0] == "M", map(chr, range(0x900, 0xE80))))
"""Vowels of the scripts of India and of Thai, which are marks of the letter before them."""
_SPELLED_WORD = rf"[^\W\d_](?:[^\W\d_]|[{_VOWEL_SIGNS}])*"
_WORD_BEFORE = re.compile(rf"({_SPELLED_WORD}(?:['’-]{_SPELLED_WORD})*)\s*\Z")
_WORD_AFTER = re.compile(rf"\s*({_SPELLED_WORD}(?:['’-]{_SPELLED_WORD})*)")
_CHANGES_BEFORE_BY = frozenset(
    """
    increase increased increases grew grow grows grown rose rise rises risen decrease decreased decreases fell
    fall falls dropped drops drop declined declines decline up down goes went shrank shrinks shrunk shrink reduced
    reduces reduce""".split()
)
"""Words before "by" and a number that is how much something changes."""
_PART_OF = re.compile(r"(?<!\bany )(?<!\ball )\bof\s+(?:the|these|those|all|his|her|their|its|my|our)\Z", re.I)
"""Matches words before a number of which something else is a part: "none of the 18", but not "any of the 18"."""
_BY_BEFORE = re.compile(r"([^\W\d_]+)\W{1,3}by\s*\Z", re.I)
_OF_BEFORE = re.compile(r"([^\W\d_]+)\W{1,3}of\s*\Z", re.I)
_ENDING = re.compile(r"(?<=[a-z]{3})(?:e?s|e?d|ing|ers?|e)\Z")


def is_known_beside(text: str, start: int, end: int, question: str) -> bool:
    """Returns whether the words and signs right before and after a number are known to leave it as it is.

    Args:
        text: sentence with the number.
        start: where the number begins, with its sign and currency.
        end: where the number ends, with its unit.
        question: words of the question are known.
    """
    if not is_known_before(text, start, question):
        return False
    word_before = _WORD_BEFORE.search(text[max(0, start - MOST_BESIDE_NUMBER) : start])
    counted_word = (
        _WORD_AFTER.match(text, end)
        if word_before is not None and word_before[1].lower() in _SAYING_WORDS_ABROAD
        else None
    )
    return (counted_word is not None and counted_word[1].lower() not in _NOT_COUNTED) or is_known_after(
        text, end, question
    )


def is_known_before(text: str, start: int, question: str) -> bool:
    """Returns whether what stands right before a number is known; `is_known_beside` has the arguments."""
    before = text[max(0, start - MOST_BESIDE_NUMBER) : start].rstrip()
    if not before:
        return True
    if _PART_OF.search(before):
        return False
    word_match = _WORD_BEFORE.search(before.removesuffix("."))
    if before[-1] == "." and word_match and len(word_match[1]) < MIN_SENTENCE_END:
        return False
    if not before[-1].isalpha():
        return before[-1] in _SIGNS_BEFORE | _PICTURES or before[-1].isdigit()
    if word_match is None:
        return False
    word = word_match[1].lower()
    if word == "by" and (word_before_by := _BY_BEFORE.search(before)):
        return word_before_by[1].lower() in _CHANGES_BEFORE_BY or _is_known_word(word_before_by[1], question)
    if word == "of" and (word_before_of := _OF_BEFORE.search(before)):
        return word_before_of[1].lower() in _WORDS_BEFORE_OF or _is_known_word(word_before_of[1], question)
    return (
        word.rpartition("'")[2] in _WORDS_BEFORE
        or word.partition("'")[0] in _WORDS_BEFORE
        or _is_known_word(word_match[1], question)
    )


MIN_SENTENCE_END = 7
"""Fewest letters of a word before a point that may be no abbreviation, such as "No." before a number."""


def is_known_after(text: str, end: int, question: str) -> bool:
    """Returns whether what stands right after a number is known; `is_known_beside` has the arguments."""
    after = text[end : end + MOST_BESIDE_NUMBER]
    found_words: list[str] = []
    position = 0
    while len(found_words) < MOST_DESCRIBING + 3 and (word := _WORD_AFTER.match(after, position)):
        found_words.append(word[1])
        position = word.end()
    if found_words and _DIGIT_NEXT.match(after, position):
        found_words.append("the")  # "in 7 days" is as known as "in the week"
    if not found_words:
        if (aside_match := _ASIDE_WORD.match(after)) and not _is_plain_aside(aside_match[1], question):
            return False
        if (last_words := _LAST_WORDS.match(after)) and not is_known_after(
            f" {last_words[1] or last_words[2]}", 0, question
        ):
            return False
        sign = after.lstrip()[:1]
        return not sign or sign in _SIGNS_AFTER | _PICTURES or sign.isdigit()
    for index, word_after in enumerate(found_words[: MOST_DESCRIBING + 1]):
        if _counts(word_after, question):
            return index + 1 == len(found_words) or _goes_on(found_words[index + 1 :], question)
        if index == 0 and _goes_on(found_words, question):
            return True
        if unit_at(word_after, 0) or word_after.lower() in _NOT_COUNTED:
            return False
    return False


_DIGIT_NEXT = re.compile(r"\s+[$€£]?\d")
_LAST_WORDS = re.compile(
    r"\s*(?:\(\s*([^\W\d_]+(?:\s+[^\W\d_]+){1,3})\s*\)|[,:;–—-]\s*([^\W\d_]+(?:\s+[^\W\d_]+){0,2})\s*[.!]?\s*\Z)"
)
"""Matches two to four words in brackets after a number, and up to three words behind a sign that end the sentence."""
_ASIDE_WORD = re.compile(r"\s*\(\s*([^\W\d_]{2,})\s*\)")
"""Matches one word in brackets after a number: "7 (negative)"."""


def _is_plain_aside(word: str, question: str) -> bool:
    """Returns whether a word in brackets after a number leaves the number as it is."""
    is_known_word = word.lower() in _WORDS_AFTER or word.lower() in _WORDS_BEFORE or unit_at(word, 0) is not None
    return is_known_word or _counts(word, question)


def _goes_on(words_after: list[str], question: str) -> bool:
    """Returns whether words may follow a number, or what it counts, without a change of the number."""
    word = words_after[0].lower()
    if (next_words := _NEXT_WORDS_OF.get(word)) is not None:
        if len(words_after) == 1:
            return word != "in" and _is_known_word(word, question)
        is_name = (
            word == "in" and words_after[1].istitle() and words_after[1].lower() not in _NOT_COUNTED | _NOTATION_WORDS
        )
        return is_name or words_after[1].lower() in next_words or _counts(words_after[1], question)
    return word in _WORDS_AFTER or _is_known_word(words_after[0], question)


def _counts(word: str, question: str) -> bool:
    """Returns whether a word names what is counted: a plural, or a word of the question."""
    word_end = word.lower().rpartition("-")[2]
    if word_end in _NOT_NAMES and word_end not in _IRREGULAR_PLURALS:
        return False
    return _PLURAL.fullmatch(word_end) is not None or word_end in _IRREGULAR_PLURALS or _is_known_word(word, question)


def _is_known_word(word: str, question: str) -> bool:
    """Returns whether a question has a word, in any of its forms.

    Every name is known to a question in another language. The names that are listed for other scripts are known to any
    question.
    """
    if not is_english(question) and word.lower() not in _NOT_COUNTED:
        return True
    if not word.isascii() and _is_listed_abroad(word):
        return True
    question_stems, word_lower = _stems_in(question), word.lower()
    return _bare_stem(word_lower) in question_stems or any(
        _bare_stem(part) in question_stems for part in re.split(r"['’-]", word_lower) if part
    )


def _is_listed_abroad(word: str) -> bool:
    """Returns whether a word of another script is known to lead to a number or to name what is counted."""
    is_east = _EAST_AFTER.fullmatch(word) or _EAST_BEFORE.fullmatch(word)
    return is_east is not None or word.lower() in _KNOWN_IN_SCRIPTS


@lru_cache(maxsize=64)
def is_english(question: str) -> bool:
    """Returns whether a question has a word by which English asks, or no word."""
    question_words = words(without_accents(question[-QUESTION_READ:]))
    return not any(map(str.isalpha, question_words)) or not _ENGLISH_QUESTION_WORDS.isdisjoint(_plain_words(question))


def _plain_words(question: str) -> list[str]:
    return re.findall(r"[^\W\d_]+", question[-QUESTION_READ:].lower())


@lru_cache(maxsize=64)
def _stems_in(question: str) -> frozenset[str]:
    """Returns the stems of the words of a question."""
    return frozenset(map(_bare_stem, _plain_words(without_accents(question))))


def _bare_stem(word: str) -> str:
    """Returns an English word without its ending: "mowed" and "mows" are "mow"."""
    return _ENDING.sub("", stem(word))
