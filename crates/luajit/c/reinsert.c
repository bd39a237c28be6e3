/* -- Reinsertion in linear time (changed by Outrider) ---------------------
**
** LuaJIT searches the chain of a key before it inserts it, also when it
** rebuilds the hash part, where all keys are known to differ. Numbers that an
** author chose to fall into one chain then cost the square of their count, in
** one step that nothing interrupts. Here the keys go in without a search:
**
**   1. Each key that the array part has moves there. Each other key whose main
**      position is free takes it.
**   2. Each other key takes a free node, right behind its main position, which
**      a key of the same main position holds since step 1.
**
** So every chain holds the keys of one main position only, as after insertions
** one by one, and `freetop` has no free node above it.
*/

/* The slot of a key that the array part has, or NULL. */
static TValue *keyarrayslot(GCtab *t, cTValue *key)
{
  if (tvisnum(key)) {
    int64_t i64;
    int32_t k;
    if (lj_num2int_cond(numV(key), i64, k, (uint32_t)i64 < t->asize))
      return arrayslot(t, k);
  }
  return NULL;
}

/* Insert a key at its main position, or leave it for the second step. */
static void reinsertmain(lua_State *L, GCtab *t, cTValue *key, cTValue *val)
{
  TValue *slot = keyarrayslot(t, key);
  Node *n = hashkey(t, key);
  if (slot != NULL) {
    copyTV(L, slot, val);
  } else if (tvisnil(&n->key)) {
    n->key.u64 = key->u64;
    copyTV(L, &n->val, val);
  }
}

/* Insert a key that the first step left. Returns 0 without a free node. */
static int reinsertrest(lua_State *L, GCtab *t, cTValue *key, cTValue *val)
{
  Node *n = hashkey(t, key);
  Node *nodebase = noderef(t->node);
  Node *freenode = getfreetop(t, nodebase);
  if (n->key.u64 == key->u64 || keyarrayslot(t, key) != NULL)
    return 1;
  do {
    if (freenode == nodebase)
      return 0;
  } while (!tvisnil(&(--freenode)->key));
  setfreetop(t, nodebase, freenode);
  freenode->key.u64 = key->u64;
  copyTV(L, &freenode->val, val);
  setmrefr(freenode->next, n->next);
  setmref(n->next, freenode);
  return 1;
}

/* Reinsert the end of a shrunk array part and all pairs of an old hash part. */
static void reinsertpairs(lua_State *L, GCtab *t, uint32_t oldasize,
			  Node *oldnode, uint32_t oldhmask)
{
  TValue *array = tvref(t->array);
  uint32_t asize = t->asize, narray = asize < oldasize ? oldasize-asize : 0;
  uint32_t total = narray + (oldhmask > 0 ? oldhmask+1 : 0), i;
  /*
  ** Without a hash part, or when it is too small, insert with a search. That
  ** does not happen where the array part shrinks: `rehashtab` counts first.
  */
  int step = t->hmask > 0 ? 1 : 3;
  t->nomm = 0;  /* Invalidate negative metamethod cache. */
  for (; step <= 3; step++) {
    int isfull = 0;
    for (i = 0; i < total; i++) {
      TValue k;
      cTValue *key, *val;
      if (i < narray) {
	k.n = (lua_Number)(int32_t)(asize+i);
	key = &k;
	val = &array[asize+i];
      } else {
	key = &oldnode[i-narray].key;
	val = &oldnode[i-narray].val;
      }
      if (tvisnil(val))
	continue;
      if (step == 1)
	reinsertmain(L, t, key, val);
      else if (step == 3)
	copyTV(L, lj_tab_set(L, t, key), val);
      else if (!reinsertrest(L, t, key, val))
	isfull = 1;
    }
    if (step == 2 && !isfull)
      break;
  }
  lj_gc_anybarriert(L, t);
}

