"""Hand-made lists of words, written for this project from general knowledge."""

GROUPS = {
    "animals": "cat horse sheep tiger rabbit goat camel wolf donkey giraffe hamster badger otter zebra".split(),
    "fruits": "apple banana pear grape peach cherry mango lemon plum apricot melon papaya".split(),
    "vehicles": "car bus train truck bicycle tram ship tractor helicopter canoe scooter ferry".split(),
    "tools": "hammer saw drill wrench pliers chisel shovel rake axe screwdriver".split(),
    "clothes": "shirt sock coat glove scarf jacket sweater trousers skirt apron".split(),
    "body parts": "hand foot knee elbow nose shoulder ankle thumb wrist chin".split(),
    "furniture": "chair table sofa bed desk wardrobe bookcase stool bench cupboard".split(),
    "instruments": "piano violin flute trumpet guitar cello clarinet harp trombone banjo".split(),
    "vegetables": "carrot onion cabbage spinach potato celery broccoli leek turnip parsnip".split(),
    "metals": "chromium copper silver zinc nickel gold aluminum titanium cobalt platinum".split(),
    "birds": "eagle sparrow owl penguin robin falcon pigeon swan parrot heron".split(),
    "weather": "rain snow fog hail storm thunder drizzle sleet breeze frost".split(),
}
"""Kind -> words that are of this kind and of no other one here."""
RELATED = (frozenset(("animals", "birds")), frozenset(("fruits", "vegetables")))
"""Kinds of which a word could be counted for the other."""

WORDS = sorted(
    set(
        """sun cup map box net fox jar key log mud pen rug tub van web yes zip arm bag cow dot fig gap hen ink jam
        lamp moon tree fish door bird milk rope sand wind coin desk frog gate hill lake nest pond road ship star wolf
        bell cake drum fork goat harp kite leaf mask neck oven park rice sock tent vase wing yarn zinc bone crab
        apple bread chair dream earth flame grape house juice knife lemon mouse night ocean paper queen river
        snake table uncle voice watch youth zebra bridge candle doctor engine flower garden hammer island jacket
        kitten ladder market needle orange pencil rabbit school turtle valley window yellow basket cotton dinner
        forest guitar helmet insect jungle kettle lesson mirror nature parrot pocket rocket saddle temple village
        balance cabinet diamond evening factory gallery harvest journey kitchen lantern machine natural october
        painter quarter railway science teacher uniform vehicle weather academy blanket captain dolphin element
        building children daughter elephant football grandson hospital industry keyboard language mountain notebook
        operator passport question restless sandwich thousand umbrella vacation whispers yourself absolute
        adventure breakfast chocolate dangerous education furniture geography happiness important knowledge
        literature microphone newspaper opposites paragraph raspberry statistic telephone universal vegetable
        wonderful yesterday accountant background celebrate difference encyclopedia friendship government
        helicopter impossible journalist laboratory mississippi occurrence photograph quarantine refrigerator
        strawberry television understand vocabulary watermelon appreciate bookkeeper commission embarrassed
        parallel address tomorrow assess success balloon committee possession""".split()
    )
)
"""Words of three to fourteen letters."""

TRANSLATIONS = tuple(
    tuple(line.split())
    for line in """dog Hund chien perro
    cat Katze chat gato
    house Haus maison casa
    water Wasser eau agua
    bread Brot pain pan
    milk Milch lait leche
    book Buch livre libro
    tree Baum arbre árbol
    sun Sonne soleil sol
    moon Mond lune luna
    fire Feuer feu fuego
    eye Auge œil|oeil ojo
    heart Herz cœur|coeur corazón
    day Tag jour|journée día
    night Nacht nuit noche
    green grün vert|verte verde
    red rot rouge rojo|roja
    white weiß|weiss blanc|blanche blanco|blanca
    black schwarz noir|noire negro|negra
    yellow gelb jaune amarillo|amarilla
    fish Fisch poisson pez|pescado
    bird Vogel oiseau pájaro|ave
    horse Pferd cheval caballo
    cow Kuh vache vaca
    apple Apfel pomme manzana
    cheese Käse fromage queso
    salt Salz sel sal
    sugar Zucker sucre azúcar
    table Tisch table mesa
    window Fenster fenêtre ventana
    door Tür porte puerta
    school Schule école escuela
    friend Freund|Freundin ami|amie amigo|amiga
    brother Bruder frère hermano
    sister Schwester sœur|soeur hermana
    mother|mom Mutter mère madre
    father|dad Vater père padre
    child|kid Kind enfant niño|niña
    king König roi rey
    queen Königin reine reina
    summer Sommer été verano
    snow Schnee neige nieve
    rain Regen pluie lluvia
    sea|ocean Meer|See mer mar
    mountain Berg montagne montaña
    river|stream Fluss|Fluß rivière|fleuve río
    forest|wood|woods Wald forêt bosque
    flower Blume fleur flor
    egg Ei œuf|oeuf huevo
    potato Kartoffel patate patata|papa
    spoon Löffel cuillère|cuiller cuchara
    knife Messer couteau cuchillo
    key Schlüssel clé|clef llave
    chair Stuhl chaise silla
    bed Bett lit cama
    street|road Straße|Strasse rue calle
    city|town Stadt ville ciudad
    war Krieg guerre guerra
    peace Frieden paix paz
    love Liebe amour amor
    butterfly Schmetterling papillon mariposa
    spider Spinne araignée araña
    squirrel Eichhörnchen écureuil ardilla
    owl Eule hibou|chouette búho|lechuza
    hedgehog Igel hérisson erizo
    strawberry Erdbeere fraise fresa|frutilla
    onion Zwiebel oignon cebolla
    garlic Knoblauch ail ajo
    scissors Schere ciseaux tijeras
    bridge Brücke pont puente
    roof Dach toit tejado|techo
    thumb Daumen pouce pulgar
    elbow Ellbogen|Ellenbogen coude codo
    sword Schwert épée espada
    pillow|cushion Kissen|Kopfkissen oreiller almohada
    needle Nadel aiguille aguja""".splitlines()
)
"""English, German, French, Spanish; accepted words with `|` between them."""

ANTONYMS = tuple(
    tuple(pair.split(":"))
    for pair in """hot:cold big:small fast:slow wet:dry happy:sad early:late rich:poor loud:quiet full:empty open:closed
    strong:weak light:dark high:low new:old clean:dirty hard:soft near:far thick:thin wide:narrow brave:cowardly
    young:aged sweet:bitter deep:shallow rough:smooth sharp:blunt cheap:expensive polite:rude safe:dangerous
    true:false first:last above:below inside:outside arrive:depart accept:reject begin:finish buy:sell give:take
    win:lose push:pull rise:fall remember:forget build:destroy attack:defend borrow:lend expand:shrink
    victory:defeat profit:loss ally:enemy ancient:modern generous:stingy humble:arrogant scarce:abundant
    maximum:minimum artificial:natural temporary:permanent vague:precise transparent:opaque reckless:cautious
    lazy:diligent barren:fertile conceal:reveal praise:blame optimist:pessimist lenient:strict novice:expert
    trivial:crucial ascend:descend import:export superior:inferior rural:urban voluntary:compulsory
    frugal:wasteful obscure:famous hostile:friendly flexible:rigid sober:drunk mobile:stationary
    verbose:concise benign:malignant concord:strife candid:evasive dearth:surplus garrulous:taciturn""".split()
)

NEAR_IN_MEANING = tuple(
    frozenset(line.split())
    for line in """new ancient young early first old temporary
    rise ascend high above maximum superior deep victory
    hard flexible lenient strong rough sharp soft
    big thick wide expand high maximum deep trivial
    win victory profit accept give
    verbose garrulous loud candid
    scarce dearth full rich generous frugal barren cheap
    safe reckless brave
    polite hostile ally praise concord humble candid happy optimist attack
    give buy borrow accept import
    arrive begin import first near
    vague transparent obscure conceal open light
    novice superior trivial strong
    fast mobile lazy early
    inside first above open near
    true artificial candid precise
    voluntary lenient
    build attack hostile
    benign safe hostile happy sweet""".splitlines()
)
"""First words of antonyms that are too near to each other: neither is offered as a wrong answer to the other."""

SAME_RELATION = {
    "baby": (
        "cat:kitten dog:puppy cow:calf horse:foal sheep:lamb goat:kid "
        "pig:piglet duck:duckling bear:cub goose:gosling swan:cygnet frog:tadpole"
    ),
    "sound": "dog:bark cat:meow cow:moo sheep:baa duck:quack lion:roar bee:buzz pig:oink owl:hoot horse:neigh",
    "place": (
        "doctor:hospital teacher:school cook:kitchen judge:court farmer:farm "
        "priest:church actor:theater pilot:cockpit librarian:library chemist:laboratory"
    ),
    "tool": (
        "painter:brush writer:pen carpenter:hammer gardener:rake "
        "tailor:needle hunter:rifle photographer:camera drummer:drum fisherman:net"
    ),
    "covering": "hand:glove foot:shoe head:hat neck:scarf leg:trousers waist:belt face:mask eyes:glasses",
    "home": "bird:nest bee:hive spider:web horse:stable dog:kennel fish:aquarium bear:den ant:anthill lion:den",
    "action": "knife:cut pen:write broom:sweep oven:bake needle:sew shovel:dig phone:call towel:dry",
    "female": (
        "king:queen father:mother brother:sister uncle:aunt prince:princess "
        "actor:actress husband:wife nephew:niece son:daughter bull:cow rooster:hen"
    ),
    "material": "table:wood ring:gold sweater:wool book:paper tire:rubber candle:wax wall:brick",
    "past": "go:went see:saw eat:ate write:wrote drink:drank run:ran fly:flew take:took bring:brought teach:taught",
    "opposite": "hot:cold up:down big:small day:night black:white left:right rich:poor in:out early:late",
    "comparative": "good:better bad:worse big:bigger happy:happier far:farther tall:taller easy:easier",
}
"""Relation -> pairs that stand in it; which second word is right shows from the pairs of the same relation."""

VERBS = tuple(
    tuple(line.split("/"))
    for line in """go/went/gone see/saw/seen eat/ate/eaten write/wrote/written drink/drank/drunk
    run/ran/run fly/flew/flown
    take/took/taken bring/brought/brought teach/taught/taught swim/swam/swum begin/began/begun break/broke/broken
    choose/chose/chosen drive/drove/driven fall/fell/fallen freeze/froze/frozen give/gave/given grow/grew/grown
    hide/hid/hidden|hid
    know/knew/known ride/rode/ridden ring/rang/rung rise/rose/risen shake/shook/shaken
    sing/sang/sung
    speak/spoke/spoken steal/stole/stolen swear/swore/sworn tear/tore/torn throw/threw/thrown wear/wore/worn
    blow/blew/blown draw/drew/drawn buy/bought/bought catch/caught/caught fight/fought/fought think/thought/thought
    seek/sought/sought keep/kept/kept sleep/slept/slept leave/left/left feel/felt/felt lose/lost/lost send/sent/sent
    spend/spent/spent build/built/built stand/stood/stood tell/told/told sell/sold/sold hold/held/held find/found/found
    wind/wound/wound bind/bound/bound feed/fed/fed lead/led/led meet/met/met bleed/bled/bled sit/sat/sat dig/dug/dug
    stick/stuck/stuck strike/struck/struck|stricken hang/hung|hanged/hung|hanged cling/clung/clung fling/flung/flung
    spin/spun/spun
    slide/slid/slid bite/bit/bitten|bit forget/forgot/forgotten|forgot forbid/forbade/forbidden
    weave/wove|weaved/woven|weaved
    shrink/shrank|shrunk/shrunk sink/sank|sunk/sunk spring/sprang|sprung/sprung strive/strove|strived/striven|strived
    arise/arose/arisen
    become/became/become come/came/come overcome/overcame/overcome cut/cut/cut put/put/put flee/fled/fled
    creep/crept/crept deal/dealt/dealt mean/meant/meant slay/slew/slain tread/trod|treaded/trodden|trod""".split()
)
"""Base form, past tense, past participle."""

PLURALS = tuple(
    tuple(pair.split(":"))
    for pair in """child:children man:men woman:women foot:feet tooth:teeth goose:geese mouse:mice ox:oxen leaf:leaves
    knife:knives wolf:wolves life:lives half:halves thief:thieves shelf:shelves loaf:loaves calf:calves wife:wives
    potato:potatoes tomato:tomatoes hero:heroes echo:echoes city:cities baby:babies story:stories party:parties
    church:churches bus:buses box:boxes glass:glasses crisis:crises analysis:analyses oasis:oases thesis:theses
    bacterium:bacteria louse:lice sheep:sheep deer:deer species:species
    alumnus:alumni stimulus:stimuli passerby:passersby monkey:monkeys
    piano:pianos photo:photos roof:roofs chief:chiefs house:houses library:libraries""".split()
)
