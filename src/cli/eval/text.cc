// Jane Austen, Northanger Abbey (1803), the first chapters: in the public domain.
#include "cli/eval/eval.h"

namespace celer::cli {

// clang-format off
const char* const kEvalText = R"text(CHAPTER 1

No one who had ever seen Catherine Morland in her infancy would have
supposed her born to be an heroine. Her situation in life, the character
of her father and mother, her own person and disposition, were
all equally against her. Her father was a clergyman, without being
neglected, or poor, and a very respectable man, though his name
was Richard--and he had never been handsome. He had a considerable
independence besides two good livings--and he was not in the least
addicted to locking up his daughters. Her mother was a woman of useful
plain sense, with a good temper, and, what is more remarkable, with a
good constitution. She had three sons before Catherine was born; and
instead of dying in bringing the latter into the world, as anybody might
expect, she still lived on--lived to have six children more--to see them
growing up around her, and to enjoy excellent health herself. A family
of ten children will be always called a fine family, where there are
heads and arms and legs enough for the number; but the Morlands had
little other right to the word, for they were in general very plain, and
Catherine, for many years of her life, as plain as any. She had a thin
awkward figure, a sallow skin without colour, dark lank hair, and strong
features--so much for her person; and not less unpropitious for heroism
seemed her mind. She was fond of all boy's plays, and greatly preferred
cricket not merely to dolls, but to the more heroic enjoyments of
infancy, nursing a dormouse, feeding a canary-bird, or watering a
rose-bush. Indeed she had no taste for a garden; and if she gathered
flowers at all, it was chiefly for the pleasure of mischief--at least
so it was conjectured from her always preferring those which she was
forbidden to take. Such were her propensities--her abilities were quite
as extraordinary. She never could learn or understand anything
before she was taught; and sometimes not even then, for she was often
inattentive, and occasionally stupid. Her mother was three months in
teaching her only to repeat the "Beggar's Petition"; and after all, her
next sister, Sally, could say it better than she did. Not that Catherine
was always stupid--by no means; she learnt the fable of "The Hare and
Many Friends" as quickly as any girl in England. Her mother wished her
to learn music; and Catherine was sure she should like it, for she was
very fond of tinkling the keys of the old forlorn spinnet; so, at eight
years old she began. She learnt a year, and could not bear it; and Mrs.
Morland, who did not insist on her daughters being accomplished in
spite of incapacity or distaste, allowed her to leave off. The day which
dismissed the music-master was one of the happiest of Catherine's life.
Her taste for drawing was not superior; though whenever she could obtain
the outside of a letter from her mother or seize upon any other odd
piece of paper, she did what she could in that way, by drawing houses
and trees, hens and chickens, all very much like one another. Writing
and accounts she was taught by her father; French by her mother: her
proficiency in either was not remarkable, and she shirked her lessons in
both whenever she could. What a strange, unaccountable character!--for
with all these symptoms of profligacy at ten years old, she had neither
a bad heart nor a bad temper, was seldom stubborn, scarcely ever
quarrelsome, and very kind to the little ones, with few interruptions
of tyranny; she was moreover noisy and wild, hated confinement and
cleanliness, and loved nothing so well in the world as rolling down the
green slope at the back of the house.

Such was Catherine Morland at ten. At fifteen, appearances were mending;
she began to curl her hair and long for balls; her complexion improved,
her features were softened by plumpness and colour, her eyes gained more
animation, and her figure more consequence. Her love of dirt gave way to
an inclination for finery, and she grew clean as she grew smart; she had
now the pleasure of sometimes hearing her father and mother remark
on her personal improvement. "Catherine grows quite a good-looking
girl--she is almost pretty today," were words which caught her ears now
and then; and how welcome were the sounds! To look almost pretty is an
acquisition of higher delight to a girl who has been looking plain the
first fifteen years of her life than a beauty from her cradle can ever
receive.

Mrs. Morland was a very good woman, and wished to see her children
everything they ought to be; but her time was so much occupied in
lying-in and teaching the little ones, that her elder daughters were
inevitably left to shift for themselves; and it was not very wonderful
that Catherine, who had by nature nothing heroic about her, should
prefer cricket, baseball, riding on horseback, and running about
the country at the age of fourteen, to books--or at least books of
information--for, provided that nothing like useful knowledge could be
gained from them, provided they were all story and no reflection, she
had never any objection to books at all. But from fifteen to seventeen
she was in training for a heroine; she read all such works as heroines
must read to supply their memories with those quotations which are so
serviceable and so soothing in the vicissitudes of their eventful lives.

From Pope, she learnt to censure those who

   "bear about the mockery of woe."

From Gray, that

   "Many a flower is born to blush unseen,
   "And waste its fragrance on the desert air."

From Thompson, that--

   "It is a delightful task
   "To teach the young idea how to shoot."

And from Shakespeare she gained a great store of information--amongst
the rest, that--

   "Trifles light as air,
   "Are, to the jealous, confirmation strong,
   "As proofs of Holy Writ."

That

   "The poor beetle, which we tread upon,
   "In corporal sufferance feels a pang as great
   "As when a giant dies."

And that a young woman in love always looks--

   "like Patience on a monument
   "Smiling at Grief."

So far her improvement was sufficient--and in many other points she came
on exceedingly well; for though she could not write sonnets, she brought
herself to read them; and though there seemed no chance of her throwing
a whole party into raptures by a prelude on the pianoforte, of her own
composition, she could listen to other people's performance with very
little fatigue. Her greatest deficiency was in the pencil--she had no
notion of drawing--not enough even to attempt a sketch of her lover's
profile, that she might be detected in the design. There she fell
miserably short of the true heroic height. At present she did not know
her own poverty, for she had no lover to portray. She had reached the
age of seventeen, without having seen one amiable youth who could call
forth her sensibility, without having inspired one real passion, and
without having excited even any admiration but what was very moderate
and very transient. This was strange indeed! But strange things may be
generally accounted for if their cause be fairly searched out. There was
not one lord in the neighbourhood; no--not even a baronet. There was not
one family among their acquaintance who had reared and supported a boy
accidentally found at their door--not one young man whose origin
was unknown. Her father had no ward, and the squire of the parish no
children.

But when a young lady is to be a heroine, the perverseness of forty
surrounding families cannot prevent her. Something must and will happen
to throw a hero in her way.

Mr. Allen, who owned the chief of the property about Fullerton, the
village in Wiltshire where the Morlands lived, was ordered to Bath
for the benefit of a gouty constitution--and his lady, a good-humoured
woman, fond of Miss Morland, and probably aware that if adventures will
not befall a young lady in her own village, she must seek them abroad,
invited her to go with them. Mr. and Mrs. Morland were all compliance,
and Catherine all happiness.

CHAPTER 2

In addition to what has been already said of Catherine Morland's
personal and mental endowments, when about to be launched into all the
difficulties and dangers of a six weeks' residence in Bath, it may be
stated, for the reader's more certain information, lest the following
pages should otherwise fail of giving any idea of what her character is
meant to be, that her heart was affectionate; her disposition cheerful
and open, without conceit or affectation of any kind--her manners just
removed from the awkwardness and shyness of a girl; her person pleasing,
and, when in good looks, pretty--and her mind about as ignorant and
uninformed as the female mind at seventeen usually is.

When the hour of departure drew near, the maternal anxiety of Mrs.
Morland will be naturally supposed to be most severe. A thousand
alarming presentiments of evil to her beloved Catherine from this
terrific separation must oppress her heart with sadness, and drown her
in tears for the last day or two of their being together; and advice of
the most important and applicable nature must of course flow from her
wise lips in their parting conference in her closet. Cautions against
the violence of such noblemen and baronets as delight in forcing young
ladies away to some remote farm-house, must, at such a moment, relieve
the fulness of her heart. Who would not think so? But Mrs. Morland knew
so little of lords and baronets, that she entertained no notion of their
general mischievousness, and was wholly unsuspicious of danger to her
daughter from their machinations. Her cautions were confined to the
following points. "I beg, Catherine, you will always wrap yourself up
very warm about the throat, when you come from the rooms at night; and
I wish you would try to keep some account of the money you spend; I will
give you this little book on purpose."

Sally, or rather Sarah (for what young lady of common gentility will
reach the age of sixteen without altering her name as far as she can?),
must from situation be at this time the intimate friend and confidante
of her sister. It is remarkable, however, that she neither insisted
on Catherine's writing by every post, nor exacted her promise of
transmitting the character of every new acquaintance, nor a detail
of every interesting conversation that Bath might produce. Everything
indeed relative to this important journey was done, on the part of the
Morlands, with a degree of moderation and composure, which seemed
rather consistent with the common feelings of common life, than with the
refined susceptibilities, the tender emotions which the first separation
of a heroine from her family ought always to excite. Her father, instead
of giving her an unlimited order on his banker, or even putting an
hundred pounds bank-bill into her hands, gave her only ten guineas, and
promised her more when she wanted it.

Under these unpromising auspices, the parting took place, and the
journey began. It was performed with suitable quietness and uneventful
safety. Neither robbers nor tempests befriended them, nor one lucky
overturn to introduce them to the hero. Nothing more alarming occurred
than a fear, on Mrs. Allen's side, of having once left her clogs behind
her at an inn, and that fortunately proved to be groundless.

They arrived at Bath. Catherine was all eager delight--her eyes were
here, there, everywhere, as they approached its fine and striking
environs, and afterwards drove through those streets which conducted
them to the hotel. She was come to be happy, and she felt happy already.

They were soon settled in comfortable lodgings in Pulteney Street.

It is now expedient to give some description of Mrs. Allen, that the
reader may be able to judge in what manner her actions will hereafter
tend to promote the general distress of the work, and how she will,
probably, contribute to reduce poor Catherine to all the desperate
wretchedness of which a last volume is capable--whether by her
imprudence, vulgarity, or jealousy--whether by intercepting her letters,
ruining her character, or turning her out of doors.

Mrs. Allen was one of that numerous class of females, whose society can
raise no other emotion than surprise at there being any men in the world
who could like them well enough to marry them. She had neither beauty,
genius, accomplishment, nor manner. The air of a gentlewoman, a great
deal of quiet, inactive good temper, and a trifling turn of mind
were all that could account for her being the choice of a sensible,
intelligent man like Mr. Allen. In one respect she was admirably fitted
to introduce a young lady into public, being as fond of going everywhere
and seeing everything herself as any young lady could be. Dress was
her passion. She had a most harmless delight in being fine; and our
heroine's entree into life could not take place till after three or four
days had been spent in learning what was mostly worn, and her chaperone
was provided with a dress of the newest fashion. Catherine too made
some purchases herself, and when all these matters were arranged, the
important evening came which was to usher her into the Upper Rooms. Her
hair was cut and dressed by the best hand, her clothes put on with care,
and both Mrs. Allen and her maid declared she looked quite as she should
do. With such encouragement, Catherine hoped at least to pass uncensured
through the crowd. As for admiration, it was always very welcome when it
came, but she did not depend on it.

Mrs. Allen was so long in dressing that they did not enter the ballroom
till late. The season was full, the room crowded, and the two ladies
squeezed in as well as they could. As for Mr. Allen, he repaired
directly to the card-room, and left them to enjoy a mob by themselves.
With more care for the safety of her new gown than for the comfort of
her protegee, Mrs. Allen made her way through the throng of men by
the door, as swiftly as the necessary caution would allow; Catherine,
however, kept close at her side, and linked her arm too firmly within
her friend's to be torn asunder by any common effort of a struggling
assembly. But to her utter amazement she found that to proceed along the
room was by no means the way to disengage themselves from the crowd; it
seemed rather to increase as they went on, whereas she had imagined that
when once fairly within the door, they should easily find seats and be
able to watch the dances with perfect convenience. But this was far from
being the case, and though by unwearied diligence they gained even the
top of the room, their situation was just the same; they saw nothing
of the dancers but the high feathers of some of the ladies. Still they
moved on--something better was yet in view; and by a continued exertion
of strength and ingenuity they found themselves at last in the passage
behind the highest bench. Here there was something less of crowd than
below; and hence Miss Morland had a comprehensive view of all the
company beneath her, and of all the dangers of her late passage through
them. It was a splendid sight, and she began, for the first time that
evening, to feel herself at a ball: she longed to dance, but she had
not an acquaintance in the room. Mrs. Allen did all that she could do
in such a case by saying very placidly, every now and then, "I wish you
could dance, my dear--I wish you could get a partner." For some time
her young friend felt obliged to her for these wishes; but they were
repeated so often, and proved so totally ineffectual, that Catherine
grew tired at last, and would thank her no more.

They were not long able, however, to enjoy the repose of the eminence
they had so laboriously gained. Everybody was shortly in motion for
tea, and they must squeeze out like the rest. Catherine began to feel
something of disappointment--she was tired of being continually pressed
against by people, the generality of whose faces possessed nothing to
interest, and with all of whom she was so wholly unacquainted that she
could not relieve the irksomeness of imprisonment by the exchange of a
syllable with any of her fellow captives; and when at last arrived in
the tea-room, she felt yet more the awkwardness of having no party to
join, no acquaintance to claim, no gentleman to assist them. They saw
nothing of Mr. Allen; and after looking about them in vain for a more
eligible situation, were obliged to sit down at the end of a table, at
which a large party were already placed, without having anything to do
there, or anybody to speak to, except each other.

Mrs. Allen congratulated herself, as soon as they were seated, on having
preserved her gown from injury. "It would have been very shocking to
have it torn," said she, "would not it? It is such a delicate muslin.
For my part I have not seen anything I like so well in the whole room, I
assure you."

"How uncomfortable it is," whispered Catherine, "not to have a single
acquaintance here!"

"Yes, my dear," replied Mrs. Allen, with perfect serenity, "it is very
uncomfortable indeed."

"What shall we do? The gentlemen and ladies at this table look as if
they wondered why we came here--we seem forcing ourselves into their
party."

"Aye, so we do. That is very disagreeable. I wish we had a large
acquaintance here."

"I wish we had any--it would be somebody to go to."

"Very true, my dear; and if we knew anybody we would join them directly.
The Skinners were here last year--I wish they were here now."

"Had not we better go away as it is? Here are no tea-things for us, you
see."

"No more there are, indeed. How very provoking! But I think we had
better sit still, for one gets so tumbled in such a crowd! How is my
head, my dear? Somebody gave me a push that has hurt it, I am afraid."

"No, indeed, it looks very nice. But, dear Mrs. Allen, are you sure
there is nobody you know in all this multitude of people? I think you
must know somebody."

"I don't, upon my word--I wish I did. I wish I had a large acquaintance
here with all my heart, and then I should get you a partner. I should be
so glad to have you dance. There goes a strange-looking woman! What an
odd gown she has got on! How old-fashioned it is! Look at the back."

After some time they received an offer of tea from one of their
neighbours; it was thankfully accepted, and this introduced a light
conversation with the gentleman who offered it, which was the only time
that anybody spoke to them during the evening, till they were discovered
and joined by Mr. Allen when the dance was over.

"Well, Miss Morland," said he, directly, "I hope you have had an
agreeable ball."

"Very agreeable indeed," she replied, vainly endeavouring to hide a
great yawn.

"I wish she had been able to dance," said his wife; "I wish we could
have got a partner for her. I have been saying how glad I should be if
the Skinners were here this winter instead of last; or if the Parrys had
come, as they talked of once, she might have danced with George Parry. I
am so sorry she has not had a partner!"

"We shall do better another evening I hope," was Mr. Allen's
consolation.

The company began to disperse when the dancing was over--enough to leave
space for the remainder to walk about in some comfort; and now was the
time for a heroine, who had not yet played a very distinguished part
in the events of the evening, to be noticed and admired. Every five
minutes, by removing some of the crowd, gave greater openings for her
charms. She was now seen by many young men who had not been near her
before. Not one, however, started with rapturous wonder on beholding
her, no whisper of eager inquiry ran round the room, nor was she once
called a divinity by anybody. Yet Catherine was in very good looks, and
had the company only seen her three years before, they would now have
thought her exceedingly handsome.

She was looked at, however, and with some admiration; for, in her own
hearing, two gentlemen pronounced her to be a pretty girl. Such words
had their due effect; she immediately thought the evening pleasanter
than she had found it before--her humble vanity was contented--she
felt more obliged to the two young men for this simple praise than a
true-quality heroine would have been for fifteen sonnets in celebration
of her charms, and went to her chair in good humour with everybody, and
perfectly satisfied with her share of public attention.

CHAPTER 3

Every morning now brought its regular duties--shops were to be visited;
some new part of the town to be looked at; and the pump-room to be
attended, where they paraded up and down for an hour, looking at
everybody and speaking to no one. The wish of a numerous acquaintance
in Bath was still uppermost with Mrs. Allen, and she repeated it after
every fresh proof, which every morning brought, of her knowing nobody at
all.

They made their appearance in the Lower Rooms; and here fortune was more
favourable to our heroine. The master of the ceremonies introduced to
her a very gentlemanlike young man as a partner; his name was Tilney.
He seemed to be about four or five and twenty, was rather tall, had a
pleasing countenance, a very intelligent and lively eye, and, if not
quite handsome, was very near it. His address was good, and Catherine
felt herself in high luck. There was little leisure for speaking
while they danced; but when they were seated at tea, she found him as
agreeable as she had already given him credit for being. He talked with
fluency and spirit--and there was an archness and pleasantry in his
manner which interested, though it was hardly understood by her. After
chatting some time on such matters as naturally arose from the objects
around them, he suddenly addressed her with--"I have hitherto been very
remiss, madam, in the proper attentions of a partner here; I have not
yet asked you how long you have been in Bath; whether you were ever here
before; whether you have been at the Upper Rooms, the theatre, and
the concert; and how you like the place altogether. I have been
very negligent--but are you now at leisure to satisfy me in these
particulars? If you are I will begin directly."

"You need not give yourself that trouble, sir."

"No trouble, I assure you, madam." Then forming his features into a set
smile, and affectedly softening his voice, he added, with a simpering
air, "Have you been long in Bath, madam?"

"About a week, sir," replied Catherine, trying not to laugh.

"Really!" with affected astonishment.

"Why should you be surprised, sir?"

"Why, indeed!" said he, in his natural tone. "But some emotion must
appear to be raised by your reply, and surprise is more easily assumed,
and not less reasonable than any other. Now let us go on. Were you never
here before, madam?"

"Never, sir."

"Indeed! Have you yet honoured the Upper Rooms?"

"Yes, sir, I was there last Monday."

"Have you been to the theatre?"

"Yes, sir, I was at the play on Tuesday."

"To the concert?"

"Yes, sir, on Wednesday."

"And are you altogether pleased with Bath?"

"Yes--I like it very well."

"Now I must give one smirk, and then we may be rational again."
Catherine turned away her head, not knowing whether she might venture to
laugh. "I see what you think of me," said he gravely--"I shall make but
a poor figure in your journal tomorrow."

"My journal!"

"Yes, I know exactly what you will say: Friday, went to the Lower
Rooms; wore my sprigged muslin robe with blue trimmings--plain black
shoes--appeared to much advantage; but was strangely harassed by a
queer, half-witted man, who would make me dance with him, and distressed
me by his nonsense."

"Indeed I shall say no such thing."

"Shall I tell you what you ought to say?"

"If you please."

"I danced with a very agreeable young man, introduced by Mr. King; had
a great deal of conversation with him--seems a most extraordinary
genius--hope I may know more of him. That, madam, is what I wish you to
say."

"But, perhaps, I keep no journal."

"Perhaps you are not sitting in this room, and I am not sitting by
you. These are points in which a doubt is equally possible. Not keep a
journal! How are your absent cousins to understand the tenour of your
life in Bath without one? How are the civilities and compliments of
every day to be related as they ought to be, unless noted down every
evening in a journal? How are your various dresses to be remembered,
and the particular state of your complexion, and curl of your hair to be
described in all their diversities, without having constant recourse to
a journal? My dear madam, I am not so ignorant of young ladies' ways as
you wish to believe me; it is this delightful habit of journaling which
largely contributes to form the easy style of writing for which ladies
are so generally celebrated. Everybody allows that the talent of writing
agreeable letters is peculiarly female. Nature may have done something,
but I am sure it must be essentially assisted by the practice of keeping
a journal."

"I have sometimes thought," said Catherine, doubtingly, "whether ladies
do write so much better letters than gentlemen! That is--I should not
think the superiority was always on our side."

"As far as I have had opportunity of judging, it appears to me that the
usual style of letter-writing among women is faultless, except in three
particulars."

"And what are they?"

"A general deficiency of subject, a total inattention to stops, and a
very frequent ignorance of grammar."

"Upon my word! I need not have been afraid of disclaiming the
compliment. You do not think too highly of us in that way."

"I should no more lay it down as a general rule that women write better
letters than men, than that they sing better duets, or draw better
landscapes. In every power, of which taste is the foundation, excellence
is pretty fairly divided between the sexes."

They were interrupted by Mrs. Allen: "My dear Catherine," said she, "do
take this pin out of my sleeve; I am afraid it has torn a hole already;
I shall be quite sorry if it has, for this is a favourite gown, though
it cost but nine shillings a yard."

"That is exactly what I should have guessed it, madam," said Mr. Tilney,
looking at the muslin.

"Do you understand muslins, sir?"

"Particularly well; I always buy my own cravats, and am allowed to be an
excellent judge; and my sister has often trusted me in the choice of a
gown. I bought one for her the other day, and it was pronounced to be a
prodigious bargain by every lady who saw it. I gave but five shillings a
yard for it, and a true Indian muslin."

Mrs. Allen was quite struck by his genius. "Men commonly take so little
notice of those things," said she; "I can never get Mr. Allen to know
one of my gowns from another. You must be a great comfort to your
sister, sir."

"I hope I am, madam."

"And pray, sir, what do you think of Miss Morland's gown?"

"It is very pretty, madam," said he, gravely examining it; "but I do not
think it will wash well; I am afraid it will fray."

"How can you," said Catherine, laughing, "be so--" She had almost said
"strange."

"I am quite of your opinion, sir," replied Mrs. Allen; "and so I told
Miss Morland when she bought it."

"But then you know, madam, muslin always turns to some account or other;
Miss Morland will get enough out of it for a handkerchief, or a cap, or
a cloak. Muslin can never be said to be wasted. I have heard my sister
say so forty times, when she has been extravagant in buying more than
she wanted, or careless in cutting it to pieces."

"Bath is a charming place, sir; there are so many good shops here. We
are sadly off in the country; not but what we have very good shops in
Salisbury, but it is so far to go--eight miles is a long way; Mr. Allen
says it is nine, measured nine; but I am sure it cannot be more than
eight; and it is such a fag--I come back tired to death. Now, here one
can step out of doors and get a thing in five minutes."

Mr. Tilney was polite enough to seem interested in what she said; and
she kept him on the subject of muslins till the dancing recommenced.
Catherine feared, as she listened to their discourse, that he indulged
himself a little too much with the foibles of others. "What are you
thinking of so earnestly?" said he, as they walked back to the ballroom;
"not of your partner, I hope, for, by that shake of the head, your
meditations are not satisfactory."

Catherine coloured, and said, "I was not thinking of anything."

"That is artful and deep, to be sure; but I had rather be told at once
that you will not tell me."

"Well then, I will not."

"Thank you; for now we shall soon be acquainted, as I am authorized to
tease you on this subject whenever we meet, and nothing in the world
advances intimacy so much."

They danced again; and, when the assembly closed, parted, on the
lady's side at least, with a strong inclination for continuing the
acquaintance. Whether she thought of him so much, while she drank her
warm wine and water, and prepared herself for bed, as to dream of him
when there, cannot be ascertained; but I hope it was no more than in
a slight slumber, or a morning doze at most; for if it be true, as a
celebrated writer has maintained, that no young lady can be justified
in falling in love before the gentleman's love is declared,* it must be
very improper that a young lady should dream of a gentleman before the
gentleman is first known to have dreamt of her. How proper Mr. Tilney
might be as a dreamer or a lover had not yet perhaps entered Mr. Allen's
head, but that he was not objectionable as a common acquaintance for
his young charge he was on inquiry satisfied; for he had early in the
evening taken pains to know who her partner was, and had been assured
of Mr. Tilney's being a clergyman, and of a very respectable family in
Gloucestershire.

CHAPTER 4

With more than usual eagerness did Catherine hasten to the pump-room the
next day, secure within herself of seeing Mr. Tilney there before the
morning were over, and ready to meet him with a smile; but no smile
was demanded--Mr. Tilney did not appear. Every creature in Bath,
except himself, was to be seen in the room at different periods of the
fashionable hours; crowds of people were every moment passing in and
out, up the steps and down; people whom nobody cared about, and nobody
wanted to see; and he only was absent. "What a delightful place Bath
is," said Mrs. Allen as they sat down near the great clock, after
parading the room till they were tired; "and how pleasant it would be if
we had any acquaintance here."

This sentiment had been uttered so often in vain that Mrs. Allen had no
particular reason to hope it would be followed with more advantage now;
but we are told to "despair of nothing we would attain," as "unwearied
diligence our point would gain"; and the unwearied diligence with which
she had every day wished for the same thing was at length to have its
just reward, for hardly had she been seated ten minutes before a lady of
about her own age, who was sitting by her, and had been looking at her
attentively for several minutes, addressed her with great complaisance
in these words: "I think, madam, I cannot be mistaken; it is a long time
since I had the pleasure of seeing you, but is not your name Allen?"
This question answered, as it readily was, the stranger pronounced hers
to be Thorpe; and Mrs. Allen immediately recognized the features of
a former schoolfellow and intimate, whom she had seen only once since
their respective marriages, and that many years ago. Their joy on this
meeting was very great, as well it might, since they had been contented
to know nothing of each other for the last fifteen years. Compliments
on good looks now passed; and, after observing how time had slipped away
since they were last together, how little they had thought of meeting in
Bath, and what a pleasure it was to see an old friend, they proceeded to
make inquiries and give intelligence as to their families, sisters, and
cousins, talking both together, far more ready to give than to receive
information, and each hearing very little of what the other said. Mrs.
Thorpe, however, had one great advantage as a talker, over Mrs. Allen,
in a family of children; and when she expatiated on the talents of her
sons, and the beauty of her daughters, when she related their different
situations and views--that John was at Oxford, Edward at Merchant
Taylors', and William at sea--and all of them more beloved and respected
in their different station than any other three beings ever were, Mrs.
Allen had no similar information to give, no similar triumphs to press
on the unwilling and unbelieving ear of her friend, and was forced to
sit and appear to listen to all these maternal effusions, consoling
herself, however, with the discovery, which her keen eye soon made, that
the lace on Mrs. Thorpe's pelisse was not half so handsome as that on
her own.

"Here come my dear girls," cried Mrs. Thorpe, pointing at three
smart-looking females who, arm in arm, were then moving towards her. "My
dear Mrs. Allen, I long to introduce them; they will be so delighted
to see you: the tallest is Isabella, my eldest; is not she a fine young
woman? The others are very much admired too, but I believe Isabella is
the handsomest."

The Miss Thorpes were introduced; and Miss Morland, who had been for a
short time forgotten, was introduced likewise. The name seemed to strike
them all; and, after speaking to her with great civility, the eldest
young lady observed aloud to the rest, "How excessively like her brother
Miss Morland is!"

"The very picture of him indeed!" cried the mother--and "I should have
known her anywhere for his sister!" was repeated by them all, two or
three times over. For a moment Catherine was surprised; but Mrs. Thorpe
and her daughters had scarcely begun the history of their acquaintance
with Mr. James Morland, before she remembered that her eldest brother
had lately formed an intimacy with a young man of his own college, of
the name of Thorpe; and that he had spent the last week of the Christmas
vacation with his family, near London.

The whole being explained, many obliging things were said by the Miss
Thorpes of their wish of being better acquainted with her; of being
considered as already friends, through the friendship of their brothers,
etc., which Catherine heard with pleasure, and answered with all the
pretty expressions she could command; and, as the first proof of amity,
she was soon invited to accept an arm of the eldest Miss Thorpe, and
take a turn with her about the room. Catherine was delighted with this
extension of her Bath acquaintance, and almost forgot Mr. Tilney while
she talked to Miss Thorpe. Friendship is certainly the finest balm for
the pangs of disappointed love.

Their conversation turned upon those subjects, of which the free
discussion has generally much to do in perfecting a sudden intimacy
between two young ladies: such as dress, balls, flirtations, and
quizzes. Miss Thorpe, however, being four years older than Miss Morland,
and at least four years better informed, had a very decided advantage in
discussing such points; she could compare the balls of Bath with those
of Tunbridge, its fashions with the fashions of London; could rectify
the opinions of her new friend in many articles of tasteful attire;
could discover a flirtation between any gentleman and lady who only
smiled on each other; and point out a quiz through the thickness of a
crowd. These powers received due admiration from Catherine, to whom they
were entirely new; and the respect which they naturally inspired might
have been too great for familiarity, had not the easy gaiety of Miss
Thorpe's manners, and her frequent expressions of delight on this
acquaintance with her, softened down every feeling of awe, and left
nothing but tender affection. Their increasing attachment was not to be
satisfied with half a dozen turns in the pump-room, but required, when
they all quitted it together, that Miss Thorpe should accompany Miss
Morland to the very door of Mr. Allen's house; and that they should
there part with a most affectionate and lengthened shake of hands, after
learning, to their mutual relief, that they should see each other across
the theatre at night, and say their prayers in the same chapel the next
morning. Catherine then ran directly upstairs, and watched Miss Thorpe's
progress down the street from the drawing-room window; admired the
graceful spirit of her walk, the fashionable air of her figure and
dress; and felt grateful, as well she might, for the chance which had
procured her such a friend.

Mrs. Thorpe was a widow, and not a very rich one; she was a
good-humoured, well-meaning woman, and a very indulgent mother. Her
eldest daughter had great personal beauty, and the younger ones, by
pretending to be as handsome as their sister, imitating her air, and
dressing in the same style, did very well.

This brief account of the family is intended to supersede the necessity
of a long and minute detail from Mrs. Thorpe herself, of her past
adventures and sufferings, which might otherwise be expected to occupy
the three or four following chapters; in which the worthlessness of
lords and attorneys might be set forth, and conversations, which had
passed twenty years before, be minutely repeated.

CHAPTER 5

Catherine was not so much engaged at the theatre that evening, in
returning the nods and smiles of Miss Thorpe, though they certainly
claimed much of her leisure, as to forget to look with an inquiring eye
for Mr. Tilney in every box which her eye could reach; but she looked in
vain. Mr. Tilney was no fonder of the play than the pump-room. She hoped
to be more fortunate the next day; and when her wishes for fine weather
were answered by seeing a beautiful morning, she hardly felt a doubt of
it; for a fine Sunday in Bath empties every house of its inhabitants,
and all the world appears on such an occasion to walk about and tell
their acquaintance what a charming day it is.

As soon as divine service was over, the Thorpes and Allens eagerly
joined each other; and after staying long enough in the pump-room to
discover that the crowd was insupportable, and that there was not
a genteel face to be seen, which everybody discovers every Sunday
throughout the season, they hastened away to the Crescent, to breathe
the fresh air of better company. Here Catherine and Isabella, arm
in arm, again tasted the sweets of friendship in an unreserved
conversation; they talked much, and with much enjoyment; but again
was Catherine disappointed in her hope of reseeing her partner. He was
nowhere to be met with; every search for him was equally unsuccessful,
in morning lounges or evening assemblies; neither at the Upper nor Lower
Rooms, at dressed or undressed balls, was he perceivable; nor among the
walkers, the horsemen, or the curricle-drivers of the morning. His name
was not in the pump-room book, and curiosity could do no more. He must
be gone from Bath. Yet he had not mentioned that his stay would be so
short! This sort of mysteriousness, which is always so becoming in a
hero, threw a fresh grace in Catherine's imagination around his person
and manners, and increased her anxiety to know more of him. From the
Thorpes she could learn nothing, for they had been only two days in Bath
before they met with Mrs. Allen. It was a subject, however, in which
she often indulged with her fair friend, from whom she received every
possible encouragement to continue to think of him; and his impression
on her fancy was not suffered therefore to weaken. Isabella was very
sure that he must be a charming young man, and was equally sure that he
must have been delighted with her dear Catherine, and would therefore
shortly return. She liked him the better for being a clergyman, "for she
must confess herself very partial to the profession"; and something like
a sigh escaped her as she said it. Perhaps Catherine was wrong in not
demanding the cause of that gentle emotion--but she was not experienced
enough in the finesse of love, or the duties of friendship, to know when
delicate raillery was properly called for, or when a confidence should
be forced.

Mrs. Allen was now quite happy--quite satisfied with Bath. She had found
some acquaintance, had been so lucky too as to find in them the family
of a most worthy old friend; and, as the completion of good fortune, had
found these friends by no means so expensively dressed as herself. Her
daily expressions were no longer, "I wish we had some acquaintance in
Bath!" They were changed into, "How glad I am we have met with Mrs.
Thorpe!" and she was as eager in promoting the intercourse of the two
families, as her young charge and Isabella themselves could be; never
satisfied with the day unless she spent the chief of it by the side of
Mrs. Thorpe, in what they called conversation, but in which there was
scarcely ever any exchange of opinion, and not often any resemblance of
subject, for Mrs. Thorpe talked chiefly of her children, and Mrs. Allen
of her gowns.

The progress of the friendship between Catherine and Isabella was quick
as its beginning had been warm, and they passed so rapidly through every
gradation of increasing tenderness that there was shortly no fresh proof
of it to be given to their friends or themselves. They called each other
by their Christian name, were always arm in arm when they walked, pinned
up each other's train for the dance, and were not to be divided in the
set; and if a rainy morning deprived them of other enjoyments, they
were still resolute in meeting in defiance of wet and dirt, and shut
themselves up, to read novels together. Yes, novels; for I will not
adopt that ungenerous and impolitic custom so common with novel-writers,
of degrading by their contemptuous censure the very performances, to the
number of which they are themselves adding--joining with their greatest
enemies in bestowing the harshest epithets on such works, and scarcely
ever permitting them to be read by their own heroine, who, if she
accidentally take up a novel, is sure to turn over its insipid pages
with disgust. Alas! If the heroine of one novel be not patronized by the
heroine of another, from whom can she expect protection and regard? I
cannot approve of it. Let us leave it to the reviewers to abuse such
effusions of fancy at their leisure, and over every new novel to talk in
threadbare strains of the trash with which the press now groans. Let us
not desert one another; we are an injured body. Although our productions
have afforded more extensive and unaffected pleasure than those of any
other literary corporation in the world, no species of composition has
been so much decried. From pride, ignorance, or fashion, our foes
are almost as many as our readers. And while the abilities of the
nine-hundredth abridger of the History of England, or of the man who
collects and publishes in a volume some dozen lines of Milton, Pope, and
Prior, with a paper from the Spectator, and a chapter from Sterne,
are eulogized by a thousand pens--there seems almost a general wish of
decrying the capacity and undervaluing the labour of the novelist, and
of slighting the performances which have only genius, wit, and taste to
recommend them. "I am no novel-reader--I seldom look into novels--Do not
imagine that I often read novels--It is really very well for a novel."
Such is the common cant. "And what are you reading, Miss--?" "Oh! It is
only a novel!" replies the young lady, while she lays down her book
with affected indifference, or momentary shame. "It is only Cecilia, or
Camilla, or Belinda"; or, in short, only some work in which the greatest
powers of the mind are displayed, in which the most thorough knowledge
of human nature, the happiest delineation of its varieties, the
liveliest effusions of wit and humour, are conveyed to the world in the
best-chosen language. Now, had the same young lady been engaged with a
volume of the Spectator, instead of such a work, how proudly would she
have produced the book, and told its name; though the chances must be
against her being occupied by any part of that voluminous publication,
of which either the matter or manner would not disgust a young person of
taste: the substance of its papers so often consisting in the statement
of improbable circumstances, unnatural characters, and topics of
conversation which no longer concern anyone living; and their language,
too, frequently so coarse as to give no very favourable idea of the age
that could endure it.
)text";
// clang-format on

}  // namespace celer::cli
