-- Every release there is inserts answers with their slot, since 0.1.0 begins after migration 48.
DROP TRIGGER replies_placed ON progressor.replies;
DROP FUNCTION progressor.place_reply(), progressor.slot_of(text, text);
